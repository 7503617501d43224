"""Lanes where there would be none: in short calls, and more of them than there are processors."""

from typing import Any

import unisono
from unisono.calls.dispatch import planning
from unisono.engine.compile.plan import Plan
from unisono.engine.compile.program import PlanWord
from unisono.engine.helpers import Helpers
from unisono.schedule.choose.lane_limits import Lanes

PIECE_BYTES = 64

_share = Helpers.share


def _share_much(helpers: Helpers, plan: Plan, state: memoryview, lanes: int) -> None:
    plan.words[PlanWord.LANE_BYTES] = PIECE_BYTES
    _share(helpers, plan, state, lanes)


def without_limits() -> None:
    """In this process, all calls have as many lanes as a setting says, if it does; pieces may have one cache line."""
    at: Any = planning
    at._may_share = lambda config, _: config.lanes > 1
    at.lane_limits.choose_lanes = lambda *args: Lanes(args[-1].lanes)
    helpers: Any = Helpers
    helpers.share = _share_much


def with_lanes(lanes: int) -> None:
    """From now on, calls of the default group have so many lanes on this rank."""
    without_limits()
    group = unisono.init()
    group.engine.config = group.engine.config.replace(lanes=lanes)
    group.forget_plans()
