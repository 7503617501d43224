"""Where the time of the processors goes, between two looks."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from .linux_files import Files

_LOOK_S = 0.4
_IDLE, _STEAL = (3, 4), 7
_MOST_PROCESSES = 2000


class TimeLook(NamedTuple):
    """In ticks since the boot: of all processors together, idle ones, and what a hypervisor took; and of processes."""

    total: int
    idle: int
    stolen: int
    processes: dict[str, int]


class TimeShares(NamedTuple):
    """busy: how many processors were. stolen: the share of all time that a hypervisor took. busiest: name and number of
    the process that used most; "" if there is none.
    """

    busy: float
    stolen: float
    busiest: str


def look_at_time(files: Files) -> TimeLook:
    """Look now."""
    first = files.text("proc/stat").partition("\n")[0].split()
    ticks = [int(word) for word in first[1:9]] if first[:1] == ["cpu"] else []
    ticks += [0] * (8 - len(ticks))
    processes = {}
    for folder in files.folders("proc/[0-9]*")[-_MOST_PROCESSES:]:
        head, _, rest = files.text(f"proc/{folder.name}/stat").rpartition(")")
        with suppress(IndexError, ValueError):
            fields = rest.split()
            processes[f"{head.partition('(')[2]}, {folder.name}"] = int(fields[11]) + int(fields[12])
    return TimeLook(sum(ticks), sum(ticks[k] for k in _IDLE), ticks[_STEAL], processes)


def look_at_load(files: Files) -> TimeShares:
    """What other programs use in a moment in which this process is quiet."""
    before = look_at_time(files)
    time.sleep(_LOOK_S)
    return shares_between(before, look_at_time(files), os.cpu_count() or 1)


def shares_between(before: TimeLook, after: TimeLook, processors: int) -> TimeShares:
    """What happened between two looks. processors: of the whole machine. This process does not count as the busiest."""
    total = after.total - before.total
    if total <= 0:
        return TimeShares(0.0, 0.0, "")
    stolen = max(0, after.stolen - before.stolen)
    busy = max(0, total - (after.idle - before.idle) - stolen)
    used = {
        name: ticks - before.processes[name]
        for name, ticks in after.processes.items()
        if name in before.processes and not name.endswith(f", {os.getpid()}")
    }
    most = max(used, key=used.__getitem__, default="")
    return TimeShares(busy / total * processors, stolen / total, most if most and used[most] else "")
