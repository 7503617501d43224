"""Calls timed on this host: algorithms beside each other, in turns, and what calls cost by them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median

import unisono

from ....base.config import Config
from ....base.errors import ArgumentError
from ....base.tuning import HostCosts
from ....schedule.algorithms import CATALOGUE
from ....schedule.choose import is_oversubscribed
from ....schedule.simulate import Timed, calibrate
from ..shared.timed_calls import Trial, measure, quietest

_TURNS = 5

CALIBRATION = (
    "all_reduce.one_shot", "all_reduce.two_shot", "all_reduce.tree", "all_reduce.linear_pipeline", "broadcast.linear",
    "all_gather.direct",
)  # fmt: skip
"""What they copy and combine, and in how many rounds, differs most."""

SIZES = (8, 64 << 10, 1 << 20, 16 << 20)
"""The first is for calls and rounds; the last does not stay in a cache of one processor."""


def time_here(collective: str, names: Sequence[str], ranks: int, nbytes: int, seconds: float) -> dict[str, float]:
    """The least seconds of a call by each of these algorithms among so many new ranks, in about `seconds`."""
    most = 4 * (os.cpu_count() or 1)
    if ranks > most:
        raise ArgumentError(f"--measure: {ranks} ranks on these processors would say nothing; take {most} at most")
    with unisono.world(ranks, timeout_s=120) as world:
        full = [f"{collective}.{name}" for name in names]
        return dict(zip(names, least_times(world, full, nbytes, seconds), strict=True))


def least_times(world: unisono.World, names: Sequence[str], nbytes: int, seconds: float) -> list[float]:
    """For each algorithm, by its full name, the least seconds of a call: of the slowest rank in the quietest turn.

    In a crowd, the median of that turn: the least depends on who happened to have a processor.
    """
    called = [name.partition(".") for name in names]
    trials = [Trial(collective, nbytes, algorithm=name) for collective, _, name in called]
    ranks = world.run(measure, trials, _TURNS, seconds, median if is_oversubscribed(world.size) else min)
    return quietest(ranks)


def host_costs(world: unisono.World, seconds: float, show: Callable[[int], object]) -> HostCosts:
    """What calls cost on this host, by calls of two ranks. show: is told for how many sizes that is done."""
    timed = []
    for done, nbytes in enumerate(SIZES):
        show(done)
        times = least_times(world, CALIBRATION, nbytes, seconds / len(SIZES))
        timed += [Timed(CATALOGUE[name], nbytes, took_s) for name, took_s in zip(CALIBRATION, times, strict=True)]
    return calibrate(timed, 2, Config().segment_bytes)
