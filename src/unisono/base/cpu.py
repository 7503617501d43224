"""What kind of processors this machine has: settings may have other defaults for some kinds."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
_SYSTEM = Path("/sys/devices/system/cpu")


def model() -> str:
    """The model of the processor, or at least its architecture."""
    return cpuinfo("model name") or platform.machine()


@cache
def vendor() -> str:
    """Who has made the processor, in one word: `amd`, `intel`, or else its architecture."""
    return _VENDORS.get(cpuinfo("vendor_id"), platform.machine())


def cpuinfo(name: str) -> str:
    """What the system says of the first processor, such as its `model name`; "" if nothing."""
    return first_processor().get(name, "")


def first_processor() -> dict[str, str]:
    """All that the system says of the first processor, by name."""
    said: dict[str, str] = {}
    with suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:  # no further than needed: there may be hundreds of processors
            if not line.strip():
                break
            key, _, value = line.partition(":")
            said[key.strip()] = value.strip()
    return said


@cache
def shares_cache(system: Path = _SYSTEM) -> bool:
    """Do all processors share one third-level cache? A virtual machine may say so where it is not true."""
    try:
        return (system / "cpu0/cache/index3/shared_cpu_list").read_text() == (system / "online").read_text()
    except OSError:
        return False


class Kind(NamedTuple):
    """A kind of processors. name: in messages. here: does this machine have such?"""

    name: str
    here: Callable[[], bool]


KINDS: Mapping[str, Kind] = {
    "amd": Kind("AMD processors", lambda: vendor() == "amd"),
    "amd_one_cache": Kind("AMD processors that share one cache", lambda: vendor() == "amd" and shares_cache()),
}
