"""What `unisono doctor` measures: copies, and some calls on 2 ranks and on many, timed as `unisono tune` does."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

import unisono

from ....base.config import Config
from ....base.units import format_seconds, plural
from ...machine.finding import Finding, judge
from ..shared.timed_calls import Trial, measure, quietest

LONG, SHORT = 16 << 20, 64 << 10
"""Bytes of the tensors that are summed; a copy is as long as the long one."""

_TURNS = 3
_COPIES = 16
_HUGE, _COLLAPSE = 2 << 20, 25  # bytes of a huge page; MADV_COLLAPSE of linux/mman.h
_SLOW_BARRIER_S = 50e-6


class Speed(NamedTuple):
    """Seconds of a call on so many ranks, on tensors of `nbytes`. way: private, staged (private, but copied through
    staging areas) or shared (in shared memory).
    """

    call: str
    nbytes: int
    way: str
    ranks: int
    seconds: float


def time_copies() -> tuple[float, float]:
    """The seconds that one process takes to copy LONG bytes in shared memory, at best; the share that huge pages save.

    The share is that of three turns of four: other programs may run, but not in so many turns on one side only.
    """
    with open(os.memfd_create("unisono probe"), "wb") as file:
        file.truncate(4 * LONG + _HUGE)
        begin = np.frombuffer(mmap.mmap(file.fileno(), 2 * LONG), np.uint8).ctypes.data % _HUGE
        # The kernel puts each map as far from the border of a huge page as the one before, so place by offset.
        huge, plain = (mmap.mmap(file.fileno(), 2 * LONG, offset=begin + at) for at in (0, 2 * LONG))
        with suppress(OSError):  # before Linux 6.1
            huge.madvise(_COLLAPSE)
        times = [(_copy_s(plain), _copy_s(huge)) for _ in range(1 + _COPIES)][1:]
    ratios = sorted(fast / slow for slow, fast in times)
    return min(slow for slow, _ in times), max(0.0, 1 - ratios[3 * _COPIES // 4])


def _copy_s(memory: mmap.mmap) -> float:
    halves = np.frombuffer(memory, np.uint8).reshape(2, -1)
    begin = time.perf_counter()
    halves[1] = halves[0]
    return time.perf_counter() - begin


def measure_calls(ranks: int, seconds: float) -> tuple[list[Speed], bool]:
    """How fast so many ranks are, in about `seconds`; and whether they may read each other's memory."""
    never, usual = {"cross_memory_bytes": 0}, {"cross_memory_bytes": Config.from_env().cross_memory_bytes}
    wanted = [
        ("barrier", 4, "private"),
        ("all_reduce", 8, "private"),
        ("all_reduce", SHORT, "private"),
        ("all_reduce", LONG, "private"),
        ("all_reduce", LONG, "staged"),
        ("all_reduce", LONG, "shared"),
    ]
    with unisono.world(ranks, timeout_s=120) as world:
        reaches = all(world.run(_reaches))
        wanted = [one for one in wanted if (reaches and usual != never) or one[2] != "staged"]
        trials = [
            Trial(call, nbytes, way == "shared", never if way == "staged" else usual) for call, nbytes, way in wanted
        ]
        best = quietest(world.run(measure, trials, _TURNS, seconds))
    return [Speed(*one, ranks, took_s) for one, took_s in zip(wanted, best, strict=True)], reaches


def check_barriers(speeds: Sequence[Speed], usable: int) -> list[Finding]:
    """Do ranks that each have a processor meet without delay? usable: processors. Nothing, if none was measured."""
    barriers = [one for one in speeds if one.call == "barrier"]
    finding = judge(
        "barrier",
        ", ".join(f"{format_seconds(one.seconds)} on {plural(one.ranks, 'rank')}" for one in barriers),
        all(one.seconds < _SLOW_BARRIER_S for one in barriers if one.ranks <= usable),
        "ranks with a processor each meet within microseconds: here some did not run when others waited",
        "see load, quota and virtual; then measure again",
    )
    return [finding] if barriers else []


def _reaches() -> bool:
    """May this rank read the memory of all others? On every rank: each asks all others."""
    group = unisono.init()
    unisono.barrier()
    mine = group.host.crosses_memory
    unisono.barrier()
    return mine
