"""What is measured for a moment: the load of the processors, and what huge pages would save."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import psutil

_LOOK_S = 0.4
_IDLE, _STEAL, _ALL = slice(3, 5), 7, 8  # the columns of psutil.cpu_times; later ones are in earlier ones, too


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


def _used() -> dict[str, float]:
    """Name and number of each other process -> the processor seconds that it has used."""
    used = {}
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            times = one.cpu_times()
            used[f"{one.name()}, {one.pid}"] = times.user + times.system
    used.pop(f"{psutil.Process().name()}, {os.getpid()}", None)
    return used


_NBYTES, _COPIES = 16 << 20, 16
_HUGE, _COLLAPSE = 2 << 20, 25  # bytes of a huge page, where pages have 4 KiB; MADV_COLLAPSE of linux/mman.h


def huge_gain() -> float:
    """The share of their time that copies in shared memory save on huge pages; 0 if this system cannot try them.

    Three turns of four save at least this share. So other programs that disturb some turns do not raise it.
    """
    try:
        with open(os.memfd_create("unisono probe"), "wb") as file:
            file.truncate(4 * _NBYTES + _HUGE)
            begin = np.frombuffer(mmap.mmap(file.fileno(), 2 * _NBYTES), np.uint8).ctypes.data % _HUGE
            # The kernel puts each map at the same distance from the border of a huge page, so place by offset.
            huge, plain = (mmap.mmap(file.fileno(), 2 * _NBYTES, offset=begin + at) for at in (0, 2 * _NBYTES))
            huge.madvise(_COLLAPSE)
    except OSError:  # before Linux 6.1
        return 0.0
    ratios = [_copy_s(huge) / _copy_s(plain) for _ in range(1 + _COPIES)][1:]
    return max(0.0, 1 - sorted(ratios)[3 * _COPIES // 4])


def _copy_s(memory: mmap.mmap) -> float:
    halves = np.frombuffer(memory, np.uint8).reshape(2, -1)
    begin = time.perf_counter()
    halves[1] = halves[0]
    return time.perf_counter() - begin
