"""Mismatches that ranks find at the gate, before anything moves: after these, they repeat the call in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.errors import MismatchError
from ...base.records import only_lowerings_differ, only_sizes_differ
from ...engine.compile.plan import CallPlan
from ...ranks.group.group import Group
from ...schedule import BLOCKED
from .lowering_mismatch import stage_for_a_while
from .plan_cache import CallKey, ask_for_sizes

Again = Callable[[Group, CallKey, Any, Any, "float | None"], object]
"""Makes a call: group, call, input, output, seconds."""

_again: list[Again] = []


def learn(group: Group, plan: CallPlan, what: CallKey, error: MismatchError) -> bool:
    """Can the call be made again? If so, note why: sizes of blocks differ, or tensors are shared on some ranks only."""
    if only_lowerings_differ(error.calls, group.size):
        stage_for_a_while(group, plan)
        return True
    if what[0] in BLOCKED and only_sizes_differ(error.calls, group.size):
        ask_for_sizes(group, what[0], what[2])
        return True
    return False


def stage_private(group: Group) -> None:
    """Drop the plans that copy private tensors by system calls: such calls do not reach all tensors of this rank."""
    group.plans.clear()
    group.shortcuts.clear()


def makes_again(function: Again) -> Again:
    """Decorator: this function makes calls in full. It needs the collectives, which import this file."""
    _again.append(function)
    return function


def make_again(group: Group, what: CallKey, inp: Any, out: Any, timeout_s: float | None) -> None:
    """Make a call in full after it has begun on a fast path in the background."""
    _again[-1](group, what, inp, out, timeout_s)
