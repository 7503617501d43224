"""How many lanes a call would have on this machine, for `explain` and for prices."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ....base.config import Config
from ....engine.compile.compile_schedule import compile_schedule
from ....engine.compile.program import Lowering
from ....schedule.choose.lane_limits import Lanes, Processors, choose_lanes
from .target import IN_PLACE, MOST_EXACT, Target


def lane_rows(target: Target, nbytes: int) -> Iterator[tuple[str, str]]:
    """The lines about lanes, label and text, for shared tensors and for private ones. There are none if a call has one
    lane, and no setting asks for more.
    """
    config, ranks = Config.from_env(), target.ranks
    if config.lanes == 1 or ranks > MOST_EXACT:
        return
    for label, zero_copy in (("lanes, shared", True), ("lanes, private", False)):
        lowering = Lowering(zero_copy, target.algorithm.collective in IN_PLACE)
        lanes = lanes_here(ranks, nbytes, config, len(compile_schedule(target.schedule, lowering)[0].movers))
        if lanes.why and (config.lanes or lanes.number > 1):
            yield label, lanes.why


def lanes_here(ranks: int, nbytes: int, config: Config, movers: int | None = None) -> Lanes:
    """The lanes of each rank if `unisono run` starts so many here. movers: those that copy or combine; None: all."""
    here = Processors.here((), ranks, max(1, len(os.sched_getaffinity(0)) // ranks))
    return choose_lanes(nbytes, ranks if movers is None else movers, ranks, ranks, here, config)
