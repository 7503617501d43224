"""What `unisono doctor` measures: some calls on 2 ranks and on many, timed as `unisono tune` does."""

from __future__ import annotations

from collections.abc import Sequence

import unisono

from ....base.config import Config
from ...machine import Speed
from ..tune.tune_calls import Trial, measure

LONG, SHORT = 16 << 20, 64 << 10
"""Bytes of the tensors that are summed."""

_TURNS = 3


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
            Trial(call, nbytes, way == "shared", never if way == "staged" else usual, None)
            for call, nbytes, way in wanted
        ]
        times: Sequence[Sequence[Sequence[float]]] = world.run(measure, trials, _TURNS, seconds)
    # Of the quietest turn, as other programs may run, too; of its slowest rank.
    best = [min(map(max, *of_trial)) for of_trial in zip(*times, strict=True)]
    return [Speed(*one, ranks, took_s) for one, took_s in zip(wanted, best, strict=True)], reaches


def _reaches() -> bool:
    """May this rank read the memory of all others? On every rank: each asks all others."""
    group = unisono.init()
    unisono.barrier()
    mine = group.host.crosses_memory
    unisono.barrier()
    return mine
