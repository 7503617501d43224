"""What the ranks find out at the gate of a call, before anything moves: that they can make it, but in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engine.plan import Plan
from ..errors import MismatchError
from ..membership.group import Group
from ..records import only_lowerings_differ, only_sizes_differ
from ..schedule import BLOCKED
from .known import What, ask_for_sizes
from .mixed import stage_for_a_while

__all__ = ["Again", "learn", "make_again", "makes_again", "stage_private"]

Again = Callable[[Group, What, Any, Any, "float | None"], object]
"""Makes a call: group, call, input, output, seconds."""

_again: dict[str, Again] = {}


def learn(group: Group, plan: Plan, what: What, error: MismatchError) -> bool:
    """Can the call be made again? If so, note why: sizes of blocks differ, or tensors are shared on some ranks only."""
    if only_lowerings_differ(error.calls, group.size):
        stage_for_a_while(group, plan)
        return True
    if what[0] in BLOCKED and only_sizes_differ(error.calls, group.size):
        ask_for_sizes(group, what[0], what[2])
        return True
    return False


def stage_private(group: Group) -> None:
    """Forget the plans that copy private tensors by system calls: these do not reach all tensors of this rank."""
    group.plans.clear()
    group.shortcuts.clear()


def makes_again(collective: str) -> Callable[[Again], Again]:
    """Decorator: this function makes the calls of a collective in full."""

    def register(function: Again) -> Again:
        _again[collective] = function
        return function

    return register


def make_again(group: Group, what: What, inp: Any, out: Any, timeout_s: float | None) -> None:
    """Make a call in full that has begun on a fast path in the background."""
    _again[what[0]](group, what, inp, out, timeout_s)
