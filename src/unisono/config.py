"""The settings of a group, in one frozen dataclass, whose fields say their environment variable, unit and meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .errors import ArgumentError
from .units import parse_bytes

__all__ = ["Config"]

_READ: Mapping[str, Callable[[str], float]] = {"seconds": float, "bytes": parse_bytes, "count": int}
"""Unit -> how its text is read."""


def _setting(default: Any, unit: str, env: str, why: str) -> Any:
    return field(default=default, metadata={"unit": unit, "env": env, "why": why})


@dataclass(frozen=True)
class Config:
    """The settings of a group. All ranks must have the same; `Config.from_env()` reads them from the environment.

    The metadata of each field has its environment variable (`env`), its unit (`unit`) and its meaning (`why`).
    """

    timeout_s: float = _setting(
        300.0,
        "seconds",
        "UNISONO_TIMEOUT_S",
        "a call raises WaitTimeout after this long; the default allows slow data loaders",
    )
    segment_bytes: int = _setting(
        512 << 10,
        "bytes",
        "UNISONO_SEGMENT_BYTES",
        "what a rank stages per step of a long call; half a second-level cache",
    )
    one_shot_bytes: int = _setting(
        8 << 10, "bytes", "UNISONO_ONE_SHOT_BYTES", "the longest vector for which two ranks use a one_shot algorithm"
    )
    tag_bytes: int = _setting(
        32 << 10,
        "bytes",
        "UNISONO_TAG_BYTES",
        "the longest message that shares cache lines with its signature, so that one wait brings both",
    )
    heap_bytes: int = _setting(
        0,
        "bytes",
        "UNISONO_HEAP_BYTES",
        "address space of each rank for shared tensors, backed when used; 0 means half of the machine's memory",
    )
    look_up_s: float = _setting(
        0.02,
        "seconds",
        "UNISONO_LOOK_UP_S",
        "how often a waiting kernel returns to Python, for signals, dead peers and the timeout",
    )
    spins: int = _setting(
        2000,
        "count",
        "UNISONO_SPINS",
        "pauses before a waiting rank first yields, where every rank has its own processor",
    )

    debug: int = _setting(
        0, "count", "UNISONO_DEBUG", "1: each call, its algorithm and why, its bytes and time, on standard error"
    )

    @classmethod
    def from_env(cls) -> Config:
        """The defaults, overridden by the environment. Raises ArgumentError for values that are no numbers."""
        values: dict[str, Any] = {}
        for knob in fields(cls):
            env = knob.metadata["env"]
            if env not in os.environ:
                continue
            try:
                values[knob.name] = _READ[knob.metadata["unit"]](os.environ[env])
            except ValueError as error:
                unit, why = knob.metadata["unit"], knob.metadata["why"]
                raise ArgumentError(
                    f"{env}={os.environ[env]!r} is no number of {unit} ({why}): unset or correct it"
                ) from error
        return cls(**values)
