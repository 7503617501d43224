"""Every knob, in one frozen dataclass: field, environment variable, unit, default, reason."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import ArgumentError
from .units import parse_bytes

__all__ = ["Config"]


def _knob(default: Any, env: str, why: str) -> Any:
    return field(default=default, metadata={"env": env, "why": why})


@dataclass(frozen=True)
class Config:
    """What may be tuned. `Config.from_env()` reads the environment; all ranks of a group must agree."""

    timeout_s: float = _knob(
        300.0, "UNISONO_TIMEOUT_S", "a call raises WaitTimeout after this long; long enough for a slow data loader"
    )
    segment_bytes: int = _knob(
        512 << 10,
        "UNISONO_SEGMENT_BYTES",
        "staged per rank and step; half a second-level cache",
    )
    one_shot_bytes: int = _knob(
        8 << 10,
        "UNISONO_ONE_SHOT_BYTES",
        "latency of one more wait times copy rate: up to here one-shot wins at 2 ranks",
    )
    tag_bytes: int = _knob(32 << 10, "UNISONO_TAG_BYTES", "up to here flag and payload travel together")
    heap_bytes: int = _knob(
        0,
        "UNISONO_HEAP_BYTES",
        "address space per rank for shared tensors, backed when used; 0: half of the memory",
    )
    look_up_s: float = _knob(
        0.02, "UNISONO_LOOK_UP_S", "a waiting kernel returns to Python this often: signals, liveness, deadline"
    )
    spins: int = _knob(
        2000, "UNISONO_SPINS", "pauses before the first yield, where every rank has a processor of its own"
    )

    debug: int = _knob(0, "UNISONO_DEBUG", "1: each call, its algorithm and why, its bytes and time, on standard error")

    @classmethod
    def from_env(cls) -> Config:
        """The defaults, overridden by the environment variables that are set."""
        values: dict[str, Any] = {}
        for knob in fields(cls):
            text = os.environ.get(knob.metadata["env"])
            if text is None:
                continue
            try:
                values[knob.name] = float(text) if knob.name.endswith("_s") else parse_bytes(text)
            except ValueError as error:
                raise ArgumentError(
                    f"{knob.metadata['env']}={text!r} is not a number ({knob.metadata['why']})"
                ) from error
        return cls(**values)
