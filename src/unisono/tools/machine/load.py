"""Which programs use the processors."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from ...base.units import plural
from .finding import Finding, judge

_LOOK_S = 0.4
_IDLE, _STEAL, _ALL = slice(3, 5), 7, 8  # the columns of psutil.cpu_times; later ones are in earlier ones, too
_MUCH = 0.25
"""The least number of processors used by other programs to report."""


class Load(NamedTuple):
    """The use of the processors by other programs, while this process is quiet for a moment.

    busy: the number of processors, on average.
    stolen: the share of all time that a hypervisor took.
    busiest: name and number of the process that used most; "" if there is none.
    """

    busy: float
    stolen: float
    busiest: str


def look_at_load() -> Load:
    """Look at the load for a moment."""
    times, before = psutil.cpu_times(), _used()
    time.sleep(_LOOK_S)
    used_s = {one: took_s - before.get(one, took_s) for one, took_s in _used().items()}
    busy, stolen = shares(times, psutil.cpu_times())
    most = max(used_s, key=used_s.__getitem__, default="")
    return Load(busy * (os.cpu_count() or 1), stolen, most if used_s.get(most) else "")


def shares(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The shares of the processors' time that programs used, and that a hypervisor took, between two `cpu_times`."""
    spent = [b - a for a, b in zip(before[:_ALL], after[:_ALL], strict=True)]
    total, stolen = sum(spent) or 1.0, spent[_STEAL]
    return max(0.0, sum(spent) - sum(spent[_IDLE]) - stolen) / total, max(0.0, stolen) / total


def check_load(load: Load, usable: int, ranks: int) -> Finding:
    """Do other programs use the ranks' processors? usable: processors."""
    if load.busy < _MUCH:
        return Finding("ok", "load", "other programs are quiet")
    said, room = f"other programs use {load.busy:.1f} of {plural(usable, 'processor')}", load.busy + ranks <= usable
    said += ", which is room enough" if room else f" (most: {load.busiest})" if load.busiest else ""
    reason = "each call waits for the rank that has to share its processor"
    return judge("load", said, room, reason, "end them, or leave them processors of their own (taskset)")


def _used() -> dict[str, float]:
    """Name and number of each other process -> the processor seconds that it has used."""
    used = {}
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            times = one.cpu_times()
            used[f"{one.name()}, {one.pid}"] = times.user + times.system
    used.pop(f"{psutil.Process().name()}, {os.getpid()}", None)
    return used
