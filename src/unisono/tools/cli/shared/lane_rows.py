"""How many lanes a call would have on this machine, for `explain`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ....base.config import Config
from ....engine.compile.compile_schedule import compile_schedule
from ....engine.compile.program import Lowering
from ....schedule.choose.lane_limits import Processors, choose_lanes
from .target import IN_PLACE, MOST_EXACT, Target


def lane_rows(target: Target, nbytes: int) -> Iterator[tuple[str, str]]:
    """The lines about lanes, label and text, if the settings ask for lanes: for shared tensors, and for private ones.

    PyTorch has as many threads as in ranks that `unisono run` starts.
    """
    config, ranks = Config.from_env(), target.ranks
    if config.lanes == 1 or ranks > MOST_EXACT:
        return
    here = Processors.here((), ranks, max(1, len(os.sched_getaffinity(0)) // ranks))
    for label, zero_copy in (("lanes, shared", True), ("lanes, private", False)):
        lowering = Lowering(zero_copy, target.algorithm.collective in IN_PLACE)
        movers = compile_schedule(target.schedule, lowering)[0].movers
        if said := choose_lanes(nbytes, len(movers), ranks, ranks, here, config).why:
            yield label, said
