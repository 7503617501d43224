"""The fast path of every collective: find the plan of an earlier call like this one, and run it."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...base.errors import MismatchError
from ...base.python import is_from_below
from ...engine.compile.plan import CallPlan
from ...engine.compile.program import NO_PLAN
from ...engine.process.nested import caller, check_nested, holds
from ...engine.tensors import EXPORTER, mark_written, needed_by_autograd, use_count
from ...ranks.failures import attend
from ...ranks.group import current
from ...ranks.group.group import Group
from . import background
from .checking import checking
from .drive import check_finished
from .plan_cache import UNKNOWN, CallKey, KnownCalls
from .planning import staged_plan
from .request import Request


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
        found = _find(known, inp, out) if group.worker is not None else None  # `Call.run` starts the first worker
        if found is None:
            return UNKNOWN
        plan, _, first, second = found
        held = plan.writes and (out.requires_grad or use_count(out) > 1)
        marked = needed_by_autograd((out,)) if held else ()
        request = found[1]._replace(inp=inp, out=out)
        return background.begin(group, plan, request, what[3], (first, second), timeout_s, marked)
    lock, found, status = group.lock, None, NO_PLAN
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
                found = _find(known, inp, out)
                if found is None:
                    return UNKNOWN
                plan, _, first, second = found
                if status == NO_PLAN:
                    if group.host.unfinished if group.span is None else group.span.call is not None:
                        check_finished(group, plan.record)
                    status = group.run(plan.address, first, second, group.state)
                if status:
                    staged = partial(staged_plan, group, plan, found[1]._replace(inp=inp, out=out), what[3])
                    attend.attend(group, plan, first, second, status, timeout_s, caller(), staged)
        except BaseException as error:
            found = found or _find(known, inp, out)
            if found is None:
                raise
            plan, *_ = found
            if not isinstance(error, MismatchError):
                attend.interrupted(group, plan, error, caller())
            group.hold(plan, inp, out)
            raise
    if out is not None and (out.requires_grad or use_count(out) > 1):
        found = found or _find(known, inp, out)
        if found is not None and found[0].writes:
            mark_written(needed_by_autograd((out,)))
    return None


def _find(known: KnownCalls, inp: Any, out: Any) -> tuple[CallPlan, Request, int, int] | None:
    """The plan that is known for these tensors, its request, and their addresses; None if there is none."""
    tensors = () if inp is None else (inp,) if out is inp else (inp, out)
    found = known.plans.get(known.find(known.table, 0, EXPORTER, *tensors))
    if found is None:
        return None
    plan, request = found
    if inp is None:
        return plan, request, 0, 0
    if any(tensor.dtype is not request.like.dtype for tensor in tensors):
        return None
    return plan, request, inp.data_ptr(), out.data_ptr()
