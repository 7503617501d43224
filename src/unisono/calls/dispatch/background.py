"""Calls in the background: they start on the caller's thread, and go on on the group's worker if peers are late.

To change threads and back costs as much as ten small calls. So while the worker is idle the kernel runs at once, with a
short limit on each of its waits. If it comes back unfinished, the worker goes on where it stands: the group's lock,
which is held while a call runs, passes to the worker with the call.

The limit equals the cost of passing on, so at worst a call costs twice as much as with the better of both. Without a
spare processor, the worker takes the caller's, and both drive each other's data out of its caches: then passing on
costs about as much as the call itself.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ...base.errors import MismatchError
from ...engine.compile.plan import CallPlan
from ...engine.compile.program import DONE, StateWord
from ...engine.process.nested import caller, check_nested, holds
from ...engine.tensors import mark_written
from ...ranks.failures import attend
from ...ranks.group.group import Group
from ..work import FinishedWork, Work, worker_of
from .plan_cache import CallKey, as_list
from .request import Tensors
from .retry_rules import can_make_again, make_again, stage_private

_LOOK_UP = int(StateWord.LOOK_UP_NS)


@holds("group")
def begin(
    group: Group,
    what: CallKey,
    plan: CallPlan,
    places: tuple[int, int, Any],
    inp: Tensors,
    out: Tensors,
    timeout_s: float | None,
    marked: Sequence[torch.Tensor] = (),
) -> Work[Any]:
    """Start a call with a known plan, and return its work.

    places: input and output for the kernel, and the owner of the tables that they may point to.
    marked: the written tensors of which autograd may need the old values.
    """
    if not plan.patience_ns or worker_of(group).busy or not group.lock.acquire(False):
        return _pass_on(group, what, plan, places, inp, out, timeout_s, marked, None)
    words = group.words
    usual = words[_LOOK_UP]
    try:
        words[_LOOK_UP] = plan.patience_ns
        try:
            status = group.run(plan.address, places[0], places[1], group.state)
        finally:
            words[_LOOK_UP] = usual
        if status != DONE:
            return _pass_on(group, what, plan, places, inp, out, timeout_s, marked, status)
    except BaseException as error:
        attend.interrupted(group, plan, error, caller())
        group.hold(plan, *as_list(inp), *as_list(out))
        group.lock.release()
        raise
    group.lock.release()
    if marked:
        mark_written(marked)
    return FinishedWork(out)


def _pass_on(
    group: Group,
    what: CallKey,
    plan: CallPlan,
    places: tuple[int, int, Any],
    inp: Tensors,
    out: Tensors,
    timeout_s: float | None,
    marked: Sequence[torch.Tensor],
    status: int | None,
) -> Work[Any]:
    """Let the worker make or finish the call; see `begin` and `_finish`."""
    where = caller()
    memory = [*(tensor.untyped_storage() for tensor in (*as_list(inp), *as_list(out))), places]

    def action() -> Tensors:
        try:
            made = _finish(group, plan, places[0], places[1], status, timeout_s, where)
            if not made:
                stage_private(group)
        except BaseException as error:
            group.hold(plan, *memory)
            if not isinstance(error, MismatchError) or not can_make_again(group, plan, what, error):
                raise
            made = False
        if not made:
            make_again(group, what, inp, out, timeout_s)
        mark_written(marked)
        _ = memory  # alive until here
        return out

    return worker_of(group).submit(plan.record, action)


@holds("group")
def _finish(
    group: Group, plan: CallPlan, inp: int, out: int, status: int | None, timeout_s: float | None, where: str
) -> bool:
    """Run a call to its end. status: the kernel's status on the caller's thread; None: it has not begun.

    Returns False if system calls do not reach all tensors: the call is then made anew, staged.
    """
    if status is None:
        if group.lock.locked():
            check_nested(group)
        group.lock.acquire()
    try:
        number = group.host.call_number
        if status is None:
            status = group.run(plan.address, inp, out, group.state)
        made = status == DONE or attend.attend(group, plan, inp, out, status, timeout_s, where)
        group.host.log.mark_background(number)
        return made
    finally:
        group.lock.release()
