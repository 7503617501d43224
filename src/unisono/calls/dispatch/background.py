"""Calls in the background: they start on the caller's thread, and go on on the group's worker if peers are late.

To change threads and back costs as much as ten small calls. So while the worker is idle the kernel runs at once, with a
short limit on each of its waits. If it comes back unfinished, the worker goes on where it stands. From then on the
worker is busy, and other threads that make calls of the group wait for it.

The limit equals the cost of passing on, so at worst a call costs twice as much as with the better of both. Without a
spare processor, the worker takes the caller's, and both drive each other's data out of its caches: then passing on
costs about as much as the call itself.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ...engine.compile.program import DONE, NO_PLAN, StateWord
from ...engine.process.nested import caller, holds
from ...engine.tensors import mark_written
from ...ranks.group.group import Group
from ..work import FinishedWork, Work, Worker, worker_of
from .drive import Run, check_finished, drive, failed
from .request import Tensors

_LOOK_UP = int(StateWord.LOOK_UP_NS)


@holds("group")
def begin(group: Group, run: Run, timeout_s: float | None, marked: Sequence[torch.Tensor] = ()) -> Work[Any]:
    """Start a call, and return its work. marked: the written tensors of which autograd may need the old values."""
    worker, status, begun = worker_of(group), NO_PLAN, False
    try:
        if run.plan.patience_ns and not worker.busy and not group.lock.locked():
            with group.lock:
                if not worker.busy:
                    check_finished(group, run.plan.record)
                    words, begun = group.words, True
                    usual, words[_LOOK_UP] = words[_LOOK_UP], run.plan.patience_ns
                    try:
                        status = group.run(run.plan.address, run.inp, run.out, group.state)
                    finally:
                        words[_LOOK_UP] = usual
                if status != DONE and not worker.is_this_thread:  # now: no other thread may begin a call in between
                    return _pass_on(worker, group, run, timeout_s, marked, status)
    except BaseException as error:
        if begun:
            failed(group, run, error, caller())
        raise
    if status != DONE:
        return _pass_on(worker, group, run, timeout_s, marked, status)
    if marked:
        mark_written(marked)
    return FinishedWork(run.request.out)


def _pass_on(
    worker: Worker, group: Group, run: Run, timeout_s: float | None, marked: Sequence[torch.Tensor], status: int
) -> Work[Any]:
    """Let the worker make the call; or finish it, if the kernel came back with this status."""
    where = caller()
    run = run._replace(memory=[tensor.untyped_storage() for tensor in run.memory])

    def action() -> Tensors:
        number = group.host.call_number
        drive(group, run, timeout_s, where, status)
        group.host.log.mark_background(number)
        mark_written(marked)
        return run.request.out

    return worker.submit(run.plan.record, action)
