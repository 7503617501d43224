"""Mismatches that ranks find at the gate, before anything moves: after these, they repeat the call in another way.

Calls with tensors in shared memory on some ranks only differ in nothing but the lowering. All ranks see the same
records. So all make the call again, staged, and run the next calls like it staged at once. Later they try zero copy
again.
"""

from ...base.errors import MismatchError
from ...base.records import CallRecord, only_lowerings_differ
from ...engine.compile.plan import CallPlan
from ...ranks.group.group import Group
from .plan_cache import drop_shortcuts, forget_plans

_FIRST_TURNS, _MOST_TURNS = 16, 1024
"""How many calls run staged after the first disagreement; twice as many after each further disagreement."""
_MOST_KINDS = 1024  # the most kinds of calls that a group runs staged


class StagedCalls(dict[CallRecord, tuple[int, int]]):
    """Call with tensors in shared memory on some ranks only -> how many more such calls of the group run staged, and
    how many after the next disagreement.
    """


def stage_for_a_while(group: Group, plan: CallPlan) -> None:
    """Run the next calls like this one staged. All ranks decide this after the same call."""
    like, staged = _like(plan), group.kept.setdefault(StagedCalls, StagedCalls())
    _, turns = staged.get(like, (0, _FIRST_TURNS))
    staged[like] = turns, min(2 * turns, _MOST_TURNS)
    if len(staged) > _MOST_KINDS:  # drop the oldest, which is the same on all ranks
        del staged[next(iter(staged))]
    drop_shortcuts(group, lambda plan: _like(plan) == like)


def waits_its_turn(group: Group, plan: CallPlan) -> bool:
    """Do calls like this one run staged for now?"""
    staged = group.kept.get(StagedCalls)
    return staged is not None and staged.get(_like(plan), (0, 0))[0] > 0


def takes_turn(group: Group, plan: CallPlan) -> bool:
    """Does this call run staged? If so, counts it."""
    if not waits_its_turn(group, plan):
        return False
    staged, like = group.kept[StagedCalls], _like(plan)
    left, turns = staged[like]
    staged[like] = left - 1, turns
    return True


def _like(plan: CallPlan) -> CallRecord:
    """The call without its lowering."""
    return plan.record._replace(lowering="")


def can_make_again(group: Group, plan: CallPlan, error: MismatchError) -> bool:
    """Can the call be made again, as tensors are shared on some ranks only? Then the next calls like it are staged."""
    if only_lowerings_differ(error.calls, group.size):
        stage_for_a_while(group, plan)
        return True
    return False


def stage_private(group: Group) -> None:
    """Drop the plans that copy private tensors by system calls: such calls do not reach all tensors of this rank."""
    forget_plans(group)
