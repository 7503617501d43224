"""What Linux says of this machine and of this process: its processors, and what control groups leave to it; and its
standard streams.

Sentinels import this file, so paths are texts here: `pathlib` takes a process some milliseconds to import.
"""

import fcntl
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from glob import glob
from typing import TextIO, TypeAlias

_MACHINE = os.uname().machine if hasattr(os, "uname") else ""

_Folder: TypeAlias = "str | os.PathLike[str]"

_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}

FUTEX, MEMBARRIER = (98, 283) if _MACHINE == "aarch64" else (202, 324)
"""The numbers of system calls: on AArch64, else on x86-64."""

_ASK_S = 0.01  # the time between two looks at a lock

KEEPS_ORDER = _MACHINE == "x86_64"
"""Does this processor write in order, and read in order? See `engine.memory_order`."""


def model() -> str:
    """The model of the processor, or at least its architecture."""
    return cpuinfo("model name") or _MACHINE


@cache
def vendor() -> str:
    """The maker of the processor, in one word: `amd`, `intel`; or else its architecture."""
    return _VENDORS.get(cpuinfo("vendor_id"), _MACHINE)


@cache
def cpuinfo(name: str) -> str:
    """What the system says of the first processor, such as its `model name`; "" if nothing."""
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


_NO_LIMIT = 1 << 60  # version 1 writes a number of about 2^63 bytes where there is none


def processors(pids: Iterable[int] = (), root: _Folder = "") -> int:
    """How many processors this process and those with these pids may use together, at least 1.

    These are the processors to which they are bound, or fewer, if control groups leave this process less time.
    """
    if not hasattr(os, "sched_getaffinity"):  # no ranks run there
        return os.cpu_count() or 1
    bound = os.sched_getaffinity(0)
    for pid in pids:
        with suppress(OSError, OverflowError):  # it has ended, or cannot be seen from here
            bound |= os.sched_getaffinity(pid)
    time_s = quota(root)
    return len(bound) if time_s is None else max(1, min(len(bound), int(time_s)))


def quota(root: _Folder = "") -> float | None:
    """The processor time per second that control groups allow, as a number of processors; None: no limit.

    The least of this process's own groups and all groups above.
    """
    processors = [share for folder in _folders(root, "cpu") if (share := _processors(folder)) is not None]
    return min(processors, default=None)


def memory_nodes(root: _Folder = "") -> int:
    """How many memory nodes (NUMA) have a processor that this process may run on."""
    usable, nodes = os.sched_getaffinity(0), glob(f"{root}/sys/devices/system/node/node[0-9]*")
    return sum(any(os.path.exists(f"{node}/cpu{number}") for number in usable) for node in nodes)


def free_bytes(root: _Folder = "") -> int | None:
    """The least memory that these groups have left, with files that can be read again; None: no limit.

    A process looks up once which groups have a limit.
    """
    free = [left for folder in _limited(f"{root}") if (left := _left(folder)) is not None]
    return min(free, default=None)


@cache
def _limited(root: str) -> tuple[str, ...]:
    return tuple(folder for folder in _folders(root, "memory") if _limit(folder) is not None)


def _folders(root: _Folder, controller: str) -> tuple[str, ...]:
    """The folders of the groups that this process is in, with this controller: its own, and all above."""
    own: dict[str, str] = {}  # controller, or "" for all of version 2 -> its group, as a path below the mount
    for line in _text(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    found: list[str] = []
    for line in _text(f"{root}/proc/self/mounts").splitlines():
        _, mount, kind, options, *_ = line.split(" ")
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            folders = [f"{root}{mount}"]
            where = own.get("" if kind == "cgroup2" else controller)
            for part in filter(None, (where or "").split("/")):  # in a container, this may lead outside
                folders.append(f"{folders[-1]}/{part}")
            found += reversed(folders if where is not None else [])
    return tuple(filter(os.path.isdir, found))


def _processors(folder: str) -> float | None:
    quota, _, period = _text(f"{folder}/cpu.max").partition(" ")
    if not quota:
        quota, period = _text(f"{folder}/cpu.cfs_quota_us"), _text(f"{folder}/cpu.cfs_period_us")
    with suppress(ValueError, ZeroDivisionError):  # "max": no limit
        share = int(quota) / int(period)
        return share if share > 0 else None
    return None


def _limit(folder: str) -> int | None:
    with suppress(ValueError):  # "max": no limit
        limit = int(_text(f"{folder}/memory.max") or _text(f"{folder}/memory.limit_in_bytes"))
        return limit if limit < _NO_LIMIT else None
    return None


def _left(folder: str) -> int | None:
    """How much memory a group with a limit has left."""
    limit = _limit(folder)
    with suppress(ValueError):
        used = int(_text(f"{folder}/memory.current") or _text(f"{folder}/memory.usage_in_bytes"))
        said = dict(line.split() for line in _text(f"{folder}/memory.stat").splitlines())
        again = int(said.get("total_inactive_file", said.get("inactive_file", 0)))
        return None if limit is None else max(0, limit - used + again)
    return None


def _text(path: str) -> str:
    with suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""


def fill_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed. Call this before a file is opened and kept.

    Otherwise the file gets the number of the stream, and libraries that print would write to it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free


def lock(file: TextIO, most_s: float) -> bool:
    """Lock an open file for this process. False: another process, which may be stopped, has held it for so long."""
    until = time.monotonic() + most_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_ASK_S)
        else:
            return True
