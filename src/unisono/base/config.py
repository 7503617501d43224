"""The settings of a group, in one frozen value. Each field has its unit and meaning."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from .errors import ArgumentError
from .link import Link
from .linux import KINDS
from .units import parse_bytes, seconds
from .value import Value

SHAPING = (
    "segment_bytes", "one_way_segment_bytes", "one_shot_bytes", "crowd_one_shot_bytes", "tag_bytes", "zero_copy_bytes",
    "cross_memory_bytes", "fetch_bytes",
)  # fmt: skip
"""The settings that shape what a call does inside a host. The process that makes the host's memory, its first rank or
the parent of the ranks, writes its own settings there. They count on all ranks of the host, whatever their environments
say. Another host may have other settings.
"""

_MOST_LANES = 1024
_CARRIERS = ("gloo", "ucx")


def _carrier(text: str) -> str:
    if text not in _CARRIERS:
        raise ValueError(text)
    return text


_READ: Mapping[str, Callable[[str], Any]] = {
    "seconds": float, "bytes": parse_bytes, "count": int, "link": Link.parse, "carrier": _carrier,
    "folder": str,
}  # fmt: skip
"""Unit -> how its text is read."""
_WHAT = {"link": "no link", "carrier": f"no carrier: there are {' and '.join(_CARRIERS)}"}


def environment_name(setting: str) -> str:
    return f"UNISONO_{setting.upper()}"


class Setting:
    """A setting. Its value in the class is its default.

    unit: by the end of its name, or by its name.
    why: its meaning.
    usually: its default.
    of_kind: its defaults on some kinds of processors.
    kind: this machine's kind of processor, if it has a default of its own.
    """

    def __init__(self, usually: Any, why: str, of_kind: dict[str, Any]) -> None:
        self.usually, self.why, self.of_kind = usually, why, of_kind
        self.kind = next((kind for kind in of_kind if KINDS[kind].here()), "")
        self.default = of_kind.get(self.kind, usually)

    def __set_name__(self, owner: type, name: str) -> None:
        SETTINGS[name] = self
        ends = (unit for end, unit in (("_s", "seconds"), ("_bytes", "bytes")) if name.endswith(end))
        self.unit = {"link": "link", "carrier": "carrier", "trace": "folder"}.get(name) or next(ends, "count")

    def __get__(self, instance: object, owner: type) -> Any:
        return self.default


SETTINGS: dict[str, Setting] = {}
"""The settings by name, in order."""


def _setting(default: Any, why: str, **of_kind: Any) -> Any:
    """of_kind: other defaults, for kinds of processors."""
    return Setting(default, why, of_kind)


class Config(Value):
    """The settings of a group. `Config.from_env()` reads them from the environment.

    All ranks must have the same settings, except those in SHAPING, where each host's first rank decides, and lanes.
    `config.replace(timeout_s=60)` is the same with another timeout. SETTINGS has the unit and the meaning of each.
    """

    timeout_s: float = _setting(
        300.0, "a call raises WaitTimeout after this long; the default allows slow data loaders; inf: never"
    )
    stall_warning_s: float = _setting(
        5.0, "a call that has waited this long says on standard error for which rank, and where the rank is; 0: never"
    )
    segment_bytes: int = _setting(512 << 10, "what a rank stages per step of a long call; half a second-level cache")
    one_way_segment_bytes: int = _setting(
        128 << 10,
        "the shortest segment of a call of more than two in which some ranks stage what others read: short ones let "
        "readers begin early, but are written where others have just read",
        amd=512 << 10,  # to write where another processor has just read is dear there
    )
    one_shot_bytes: int = _setting(16 << 10, "the longest vector for which two ranks use a one_shot algorithm")
    crowd_one_shot_bytes: int = _setting(
        64 << 10,
        "the same where ranks outnumber processors: one more wait then takes until each has had its turn on one",
    )
    zero_copy_bytes: int = _setting(
        8 << 10,
        "the longest vector in shared memory that two ranks stage all the same, signature and payload in one line",
    )
    cross_memory_bytes: int = _setting(
        1 << 20,
        "the shortest private vector that is copied from process to process by system calls, where that is faster than "
        "to stage it; 0: none",
        amd_one_cache=0,  # what another processor has written is cheap to read there: staging takes half the time
    )
    fetch_bytes: int = _setting(
        1 << 20,
        "the longest output into which a peer's bytes are copied from four pages in turn; half a second-level cache",
    )
    tag_bytes: int = _setting(
        32 << 10, "the longest message that shares cache lines with its signature, so that one wait brings both"
    )
    heap_bytes: int = _setting(
        0, "address space of each rank for shared tensors, backed when used; 0 means half of the machine's memory"
    )
    look_up_s: float = _setting(
        0.02,
        "how often a waiting kernel returns to Python, for signals, dead peers and the timeout; up to five times less "
        "often after seconds",
    )
    spins: int = _setting(2000, "pauses before a waiting rank first yields, where every rank has its own processor")

    link: Link = _setting(
        Link(),
        "the network between hosts, such as 1Gbit,100us: what passes each way and what a small message takes; from it "
        "follows by which algorithm hosts exchange",
    )
    carrier: str = _setting(
        "gloo",
        "what takes messages between hosts: gloo, which comes with torch; or ucx, from unisono[ucx], where calls shall "
        "be short and only the ranks reach the network",
    )
    host_silence_s: float = _setting(
        1.5,
        "a host of which nothing is heard for this long, and half a second more, is lost for good; at least 0.5. A "
        "network that is out for longer at times needs more",
    )
    lanes: int = _setting(
        0,
        "the most threads of a rank that share a long copy or sum, never more than there are processors for; 0: as "
        "many as PyTorch has there, up to 4; ranks may differ in it",
    )
    lane_bytes: int = _setting(
        8 << 20,
        "the longest vector whose copies and sums one thread of a rank makes alone, as to wake another one takes some "
        "50 µs; ranks may differ in it",
    )
    keep_inputs: int = _setting(
        0, "1: calls in place work on a copy, so that a tensor is as it was if its call fails; costs two copies of it"
    )
    trace: str = _setting(
        "", "where to write down all calls of all ranks, for `unisono trace` and Perfetto; empty: nowhere"
    )
    trace_calls: int = _setting(
        1 << 16,
        "how many calls of each rank and group a trace keeps, the last ones; a call takes 32 bytes",
    )
    debug: int = _setting(0, "1: each call, its algorithm and why, its bytes and time, on standard error")

    def __init__(self, **settings: Any) -> None:
        """Raises ArgumentError for a silence that is too short, and for a number of lanes that makes no sense.

        Raises as `seconds` does for times.
        """
        for name in settings.keys() & SETTINGS.keys():
            if SETTINGS[name].unit == "seconds":
                try:
                    settings[name] = seconds(settings[name], name)
                except ArgumentError as error:
                    raise ArgumentError(f"{error} ({environment_name(name)})") from None
        super().__init__(**settings)
        if self.segment_bytes < 1:
            raise ArgumentError(f"segment_bytes={self.segment_bytes} (UNISONO_SEGMENT_BYTES): give bytes, from 1 up")
        if not 0.5 <= self.host_silence_s < math.inf:
            raise ArgumentError(
                f"host_silence_s={self.host_silence_s:g} (UNISONO_HOST_SILENCE_S): give seconds, from 0.5 up"
            )
        if not 0 <= self.lanes <= _MOST_LANES:
            raise ArgumentError(f"lanes={self.lanes} (UNISONO_LANES): give a number of threads, 0 to {_MOST_LANES}")

    @classmethod
    def from_env(cls) -> "Config":
        """The defaults, overridden by the environment.

        Raises ArgumentError for values that are no numbers.
        """
        values: dict[str, Any] = {}
        for name, setting in SETTINGS.items():
            env = environment_name(name)
            if env not in os.environ:
                continue
            try:
                values[name] = _READ[setting.unit](os.environ[env])
            except ValueError as error:
                what = _WHAT.get(setting.unit, f"no number of {setting.unit}")
                raise ArgumentError(
                    f"{env}={os.environ[env]!r} is {what} ({setting.why}): unset or correct it"
                ) from error
        return cls(**values)

    def origin(self, name: str) -> str:
        """Where the figure of a setting comes from, in words."""
        setting = SETTINGS[name]
        if getattr(self, name) != setting.default:
            return "as set"
        return f"the default for {KINDS[setting.kind].name}" if setting.kind else "the default"
