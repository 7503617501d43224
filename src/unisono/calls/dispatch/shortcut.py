"""The fast path of every collective: find the plan of an earlier call like this one, and run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...base.python import is_from_below
from ...engine.compile.program import NO_PLAN
from ...engine.process.nested import caller, check_nested, holds
from ...engine.tensors import EXPORTER, mark_written, needed_by_autograd, use_count
from ...ranks.group import current
from ...ranks.group.group import Group
from . import background
from .checking import checking
from .drive import Run, check_finished, complete, failed
from .plan_cache import UNKNOWN, CallKey, KnownCalls


@holds("group")
def shortcut(
    group: Group | None, what: CallKey, inp: Any, out: Any, timeout_s: float | None = None, async_op: bool = False
) -> Any:
    """Make the call, if one like it has been planned before, or return UNKNOWN: it must be checked and planned.

    inp, out: tensors, or None for a barrier. Returns None, or with async_op a Work.
    """
    if group is None:
        group = current.default
        if group is None:
            return UNKNOWN
    try:
        known = group.shortcuts[what]
        if inp is not None and (inp.is_neg() or (out is not inp and out.is_neg())):  # DLPack does not tell
            return UNKNOWN
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        if is_from_below(error):
            with checking(group, what[0]):
                raise
        return UNKNOWN
    if not (timeout_s is None or (timeout_s.__class__ is float and timeout_s >= 0.0 and group.span is None)):
        return UNKNOWN
    if async_op:
        run = _find(known, what, inp, out) if group.worker is not None else None  # `Call.run` starts the first worker
        if run is None:
            return UNKNOWN
        return background.begin(group, run, timeout_s, _marked(run, out))
    lock, run, status = group.lock, None, NO_PLAN
    if lock.locked():
        check_nested(group)
        return UNKNOWN  # it waits for another thread, but not for longer than this call may take
    with lock:
        if group.worker is not None and group.worker.busy:  # calls in the background come first
            return UNKNOWN
        try:
            if group.run is known.run:
                if out is not inp:
                    status = known.call(known.table, EXPORTER, group.state, inp, out)
                elif inp is None:
                    status = known.call(known.table, EXPORTER, group.state)
                else:
                    status = known.call(known.table, EXPORTER, group.state, inp)
            if status:
                run = _find(known, what, inp, out)
                if run is None:
                    return UNKNOWN
                if status == NO_PLAN:
                    check_finished(group, run.plan.record)
                complete(group, run, timeout_s, caller(), status)
        except BaseException as error:
            run = run or _find(known, what, inp, out)
            if run is not None:
                failed(group, run, error, caller())
            raise
    if out is not None and (out.requires_grad or use_count(out) > 1):
        run = run or _find(known, what, inp, out)
        if run is not None:
            mark_written(_marked(run, out))
    return None


def _marked(run: Run, out: Any) -> Sequence[torch.Tensor]:
    """The output, if autograd may need its old value."""
    held = run.plan.writes and (out.requires_grad or use_count(out) > 1)
    return needed_by_autograd((out,)) if held else ()


def _find(known: KnownCalls, what: CallKey, inp: Any, out: Any) -> Run | None:
    """The plan that is known for these tensors, ready to run; None if there is none."""
    tensors = () if inp is None else (inp,) if out is inp else (inp, out)
    found = known.plans.get(known.find(known.table, 0, EXPORTER, *tensors))
    if found is None:
        return None
    plan, request = found
    if any(tensor.dtype is not request.like.dtype for tensor in tensors):
        return None
    first, second = (0, 0) if inp is None else (inp.data_ptr(), out.data_ptr())
    return Run(plan, request._replace(inp=inp, out=out), what[3], first, second, tensors)
