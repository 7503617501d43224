"""Calls with tensors in shared memory on some ranks only: they run staged.

At the gate, before anything moves, the ranks see that their calls differ only in the lowering. All see the same
records. So all make the call again, staged, and run the next calls like it staged at once. Later they try zero copy
again.
"""

from __future__ import annotations

from ...base.records import CallRecord
from ...engine.compile.plan import CallPlan
from ...ranks.group.group import Group

_FIRST_TURNS, _MOST_TURNS = 16, 1024
"""How many calls run staged after the first disagreement; twice as many after each further disagreement."""
_MOST_KINDS = 1024
"""The most kinds of calls that a group runs staged."""


def stage_for_a_while(group: Group, plan: CallPlan) -> None:
    """Run the next calls like this one staged. All ranks decide this after the same call."""
    like = _like(plan)
    _, turns = group.mixed.get(like, (0, _FIRST_TURNS))
    group.mixed[like] = turns, min(2 * turns, _MOST_TURNS)
    if len(group.mixed) > _MOST_KINDS:  # drop the oldest, which is the same on all ranks
        del group.mixed[next(iter(group.mixed))]
    for key, kept in list(group.shortcuts.items()):
        plans = [one.plan for one in kept] if isinstance(kept, list) else [kept]
        if like in map(_like, plans):
            group.shortcuts.pop(key, None)


def waits_its_turn(group: Group, plan: CallPlan) -> bool:
    """Do calls like this one run staged for now?"""
    return bool(group.mixed) and group.mixed.get(_like(plan), (0, 0))[0] > 0


def takes_turn(group: Group, plan: CallPlan) -> bool:
    """Does this call run staged? If so, counts it."""
    if not waits_its_turn(group, plan):
        return False
    left, turns = group.mixed[_like(plan)]
    group.mixed[_like(plan)] = left - 1, turns
    return True


def _like(plan: CallPlan) -> CallRecord:
    """The call without its lowering."""
    return plan.record._replace(lowering="")
