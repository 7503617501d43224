"""Calls in the background: they start on the caller's thread, and go on on the group's worker if peers are late.

To change threads and back costs as much as ten small calls. So while the worker is idle the kernel runs at once, with a
short limit on each of its waits. If it comes back unfinished, the worker goes on where it stands. From then on the
worker is busy, and other threads that make calls of the group wait for it.

The limit equals the cost of passing on, so at worst a call costs twice as much as with the better of both. Without a
spare processor, the worker takes the caller's, and both drive each other's data out of its caches: then passing on
costs about as much as the call itself.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...engine.compile.plan import CallPlan
from ...engine.compile.program import DONE, StateWord
from ...engine.process.nested import caller, holds
from ...engine.tensors import mark_written
from ...ranks.failures import attend
from ...ranks.group.group import Group
from ..work import FinishedWork, Work, worker_of
from .drive import check_finished, drive
from .plan_cache import as_list
from .planning import staged_plan
from .request import Request, Tensors

_LOOK_UP = int(StateWord.LOOK_UP_NS)


@holds("group")
def begin(
    group: Group,
    plan: CallPlan,
    request: Request,
    algorithm: Any,
    places: tuple[int, int],
    timeout_s: float | None,
    marked: Sequence[torch.Tensor] = (),
) -> Work[Any]:
    """Start a call with a known plan, and return its work.

    places: the addresses of input and output.
    marked: the written tensors of which autograd may need the old values.
    """
    worker, status, begun = worker_of(group), None, False
    try:
        if plan.patience_ns and not worker.busy and not group.lock.locked():
            with group.lock:
                if not worker.busy:
                    check_finished(group, plan.record)
                    words, begun = group.words, True
                    usual = words[_LOOK_UP]
                    words[_LOOK_UP] = plan.patience_ns
                    try:
                        status = group.run(plan.address, *places, group.state)
                    finally:
                        words[_LOOK_UP] = usual
                if status != DONE and not worker.is_this_thread:  # now: no other thread may begin a call in between
                    return _pass_on(group, plan, request, algorithm, places, timeout_s, marked, status)
    except BaseException as error:
        if begun:
            attend.interrupted(group, plan, error, caller())
            group.hold(plan, *as_list(request.inp), *as_list(request.out))
        raise
    if status != DONE:
        return _pass_on(group, plan, request, algorithm, places, timeout_s, marked, status)
    if marked:
        mark_written(marked)
    return FinishedWork(request.out)


def _pass_on(
    group: Group,
    plan: CallPlan,
    request: Request,
    algorithm: Any,
    places: tuple[int, int],
    timeout_s: float | None,
    marked: Sequence[torch.Tensor],
    status: int | None,
) -> Work[Any]:
    """Let the worker make the call; or finish it, if the kernel came back with this status."""
    where = caller()
    memory = [tensor.untyped_storage() for tensor in (*as_list(request.inp), *as_list(request.out))]

    def action() -> Tensors:
        number = group.host.call_number
        try:
            staged = partial(staged_plan, group, plan, request, algorithm)
            drive(group, plan, staged, *places, timeout_s, where, status)
            group.host.log.mark_background(number)
        except BaseException:
            group.hold(plan, *memory)
            raise
        mark_written(marked)
        _ = memory  # alive until here
        return request.out

    return worker_of(group).submit(plan.record, action)
