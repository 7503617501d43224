"""The settings of a group, in one frozen value. Each field has its unit and meaning."""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Self

from .errors import ArgumentError
from .link import Link
from .linux import vendor
from .units import format_bytes, integer, parse_bytes, seconds

SHAPING = (
    "segment_bytes", "one_shot_bytes", "crowd_one_shot_bytes", "inline_bytes", "zero_copy_bytes", "cross_memory_bytes",
)  # fmt: skip
"""The settings that shape what a call does inside a host. The process that makes the host's memory, its first rank or
the parent of the ranks, writes its own values there, and all ranks of the host use them. Hosts may have different ones.
"""

_MOST: Mapping[str, float] = {"seconds": math.inf, "bytes": 1 << 40}
"""Unit -> the greatest number that a setting may be, unless it says otherwise."""
_MOST_HEAP = 1 << 46
"""The heaps of a thousand ranks then fit into a file, if not into an address space."""
_MOST_LINK = Link(3600.0, 1e15)

_READ: Mapping[str, Callable[[str], Any]] = {
    "seconds": float, "bytes": parse_bytes, "count": int, "link": Link.parse, "folder": str,
}  # fmt: skip
"""Unit -> how its text is read."""
_WHAT = {"link": "a link, such as 1Gbit,100us", "count": "a whole number"}


def environment_name(setting: str) -> str:
    return f"UNISONO_{setting.upper()}"


class Setting:
    """A field of `Config`: its unit, default and bounds.

    unit: from its name.
    why: its meaning.
    usually: its default.
    least, most: the bounds of a number. None for most: that of its unit.
    amd: its default on AMD processors, if it differs.
    """

    def __init__(self, name: str, usually: Any, why: str, least: float, most: float | None, amd: Any) -> None:
        ends = (unit for end, unit in (("_s", "seconds"), ("_bytes", "bytes")) if name.endswith(end))
        self.name, self.usually, self.why, self.least, self.amd = name, usually, why, least, amd
        self.unit = {"link": "link", "trace": "folder"}.get(name) or next(ends, "count")
        self.most = _MOST.get(self.unit, math.inf) if most is None else most

    @property
    def values(self) -> str:
        """The allowed values, in words."""
        match self.unit:
            case "link":
                return f"a link of at most {_MOST_LINK}, or auto"
            case "folder":
                return "a folder"
        most = format_bytes(self.most) if self.unit == "bytes" else f"{self.most:.12g}"
        what = "a whole number" if self.unit == "count" else self.unit
        return f"{what} from {self.least:g} " + ("up" if self.most == math.inf else f"to {most}")

    def checked(self, value: Any) -> Any:
        """The value, if it is allowed. Raises ArgumentError for one that is not, DTypeError for another type."""
        if self.unit == "folder":
            return value
        if self.unit == "link":
            fits = isinstance(value, Link) and all(
                0 <= mine <= most for mine, most in zip(value, _MOST_LINK, strict=True)
            )
        else:
            if isinstance(value, timedelta):
                value = value.total_seconds()
            with suppress(ArgumentError):  # for less than 0
                value = seconds(value, self.name) if self.unit == "seconds" else _whole(value, self.name)
            fits = self.least <= value <= self.most
        if not fits:
            got = f"{value:g}" if isinstance(value, float) else f"{value}"
            raise ArgumentError(
                f"{self.name}: got {got}, expected {self.values}. Correct the argument or "
                f"{environment_name(self.name)}."
            )
        return value


def _whole(value: Any, name: str) -> int:
    return value if isinstance(value, bool) else integer(name, value)


def _setting(usually: Any, why: str, *, least: float = 0, most: float | None = None, amd: Any = None) -> Any:
    default = usually if amd is None or vendor() != "amd" else amd
    return field(default=default, metadata={"usually": usually, "why": why, "least": least, "most": most, "amd": amd})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a group.

    Example::

        config = unisono.Config.from_env().replace(timeout_s=60)
        unisono.init(config=config)
    """

    timeout_s: float = _setting(300.0, "time limit of a call, after which it raises WaitTimeout; inf: no limit")
    stall_warning_s: float = _setting(
        5.0, "after this wait a call prints the late rank and its stack to standard error; 0: never"
    )
    segment_bytes: int = _setting(
        512 << 10,
        "bytes that a rank stages (copies to shared memory) at a time; best: about half of a second-level cache",
        least=1,
    )
    one_shot_bytes: int = _setting(
        16 << 10, "longest tensor for which an all_reduce of two ranks uses the algorithm one_shot"
    )
    crowd_one_shot_bytes: int = _setting(
        64 << 10,
        "the same if ranks outnumber processors, which makes each further round expensive",
    )
    zero_copy_bytes: int = _setting(
        8 << 10,
        "longest tensor of `unisono.empty` that two ranks copy nevertheless, because this is faster for few bytes",
    )
    cross_memory_bytes: int = _setting(
        1 << 20,
        "shortest private tensor that system calls copy from process to process, if this is faster than two copies "
        "through shared memory; 0: none",
        amd=0,  # what another processor has written is cheap to read there: staging takes half the time
    )
    inline_bytes: int = _setting(
        32 << 10, "longest tensor that shares cache lines with the signature of its call, so that peers wait once"
    )
    heap_bytes: int = _setting(
        0,
        "address space of each rank for shared tensors; takes memory only when used; 0: half of the machine's memory, "
        "or less if ulimit -v requires it",
        most=_MOST_HEAP,
    )
    look_up_s: float = _setting(
        0.02,
        "how often a waiting call checks for signals, dead peers and the time-out; up to five times less often in a "
        "long wait",
        least=1e-6,
        most=3600,
    )
    spins: int = _setting(
        2000, "how often a waiting rank spins before it yields, if every rank has its own processor", most=1_000_000
    )

    link: Link = _setting(  # noqa: RUF009  its default is a Link, which is frozen
        Link(),
        "link between hosts, such as 1Gbit,100us: its rate each way, and the time of a small message; decides the "
        "algorithm between hosts",
    )
    host_silence_s: float = _setting(
        5.0,
        "a host that is silent for this time and half a second more is lost for good; set at least a second more than "
        "the longest outage of your network",
        least=0.5,
        most=86_400,
    )
    lanes: int = _setting(
        0,
        "most threads of a rank that share a long copy or sum; 0: as many as PyTorch has, up to 4, if processors are "
        "enough",
        most=1024,
    )
    lane_bytes: int = _setting(
        8 << 20,
        "longest tensor that a rank copies or sums with one thread, because waking another takes about 50 µs",
    )
    keep_inputs: int = _setting(
        0,
        "1: a failed call leaves its tensor unchanged, because calls in place work on a copy; costs two copies",
        most=1,
    )
    trace: str = _setting(
        "", "folder to which all ranks write all calls, for `unisono trace` and Perfetto; empty: no trace"
    )
    trace_calls: int = _setting(
        1 << 16,
        "how many of the last calls of each rank and group a trace keeps, in 32 bytes each",
        least=1,
        most=1 << 30,
    )
    debug: int = _setting(0, "1: print each call to standard error: its algorithm and why, its bytes and time", most=1)

    def __post_init__(self) -> None:
        """Raises ArgumentError for a value out of range, and DTypeError for a value of another type."""
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.checked(getattr(self, name)))

    def replace(self, **changes: Any) -> Self:
        """A copy with other values for some settings."""
        return replace(self, **changes)

    @classmethod
    def from_env(cls) -> "Config":
        """The defaults, overridden by environment variables such as UNISONO_TIMEOUT_S.

        Raises:
            ArgumentError: A variable has a value that its setting does not allow.
        """
        values: dict[str, Any] = {}
        for name, setting in SETTINGS.items():
            env = environment_name(name)
            if env not in os.environ:
                continue
            try:
                values[name] = _READ[setting.unit](os.environ[env])
            except ValueError as error:
                what = _WHAT.get(setting.unit, f"a number of {setting.unit}")
                raise ArgumentError(
                    f"{env}: got {os.environ[env]!r}, expected {what} ({setting.why}). Correct or unset it."
                ) from error
        return cls(**values)


SETTINGS: Mapping[str, Setting] = {of.name: Setting(of.name, **of.metadata) for of in fields(Config)}
"""The settings by name, in order."""
