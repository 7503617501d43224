"""The fast path of every collective: find the plan of an earlier call like this one, and run it.

For calls on lists of tensors it is the plan of an earlier call on such lists, and a table of addresses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...base.errors import MismatchError
from ...base.python import LateModule, tell
from ...base.records import CallRecord
from ...base.units import format_bytes, format_seconds
from ...engine.compile.plan import CallPlan
from ...engine.compile.program import NO_PLAN
from ...engine.process.nested import caller, check_nested, holds
from ...engine.tensors import EXPORTER, have_strides, mark_written, needed_by_autograd, use_count
from ...ranks.failures import attend
from ...ranks.group import current
from ...ranks.group.group import Group
from .plan_cache import UNKNOWN, CallKey, KnownCalls, ListShortcuts, as_list
from .request import is_one
from .retry_rules import can_make_again, stage_private

if TYPE_CHECKING:
    from . import background
else:  # a call that is not asynchronous does not need it
    background = LateModule(".background", __package__)

_data_ptr = torch.Tensor.data_ptr


@holds("group")
def shortcut(
    group: Group | None, what: CallKey, inp: Any, out: Any, timeout_s: float | None = None, async_op: bool = False
) -> Any:
    """Make the call, if one like it has been planned before, or return UNKNOWN: it must be checked and planned.

    inp, out: tensors, or None for a barrier. Returns None, or with async_op a Work. Returns UNKNOWN also if the call
    has to be made in another way (see `can_make_again`).
    """
    if group is None:
        group = current.default
        if group is None:
            return UNKNOWN
    try:
        known = group.shortcuts[what]
    except (AttributeError, KeyError, TypeError):
        return UNKNOWN
    if not (timeout_s is None or (timeout_s.__class__ is float and timeout_s >= 0.0 and group.span is None)):
        return UNKNOWN
    if async_op:
        found = _find(known, inp, out)
        if found is None:
            return UNKNOWN
        plan, first, second = found
        held = plan.writes and (out.requires_grad or use_count(out) > 1)
        marked = needed_by_autograd((out,)) if held else ()
        return background.begin(group, what, plan, (first, second, None), inp, out, timeout_s, marked)
    if group.worker is not None and group.worker.busy:  # calls in the background come first
        return UNKNOWN
    lock, found, status = group.lock, None, NO_PLAN
    if lock.locked():
        check_nested(group)
    lock.acquire()
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
            plan, first, second = found
            if status == NO_PLAN:
                status = group.run(plan.address, first, second, group.state)
            if status and not attend.attend(group, plan, first, second, status, timeout_s, caller()):
                stage_private(group)
                return UNKNOWN
    except BaseException as error:
        found = found or _find(known, inp, out)
        if found is None:
            raise
        plan, *_ = found
        if not isinstance(error, MismatchError):
            attend.interrupted(group, plan, error, caller())
        group.hold(plan, inp, out)
        if not isinstance(error, MismatchError) or not can_make_again(group, plan, what, error):
            raise
        return UNKNOWN
    finally:
        lock.release()
    if out is not None and (out.requires_grad or use_count(out) > 1):
        found = found or _find(known, inp, out)
        if found is not None and found[0].writes:
            mark_written(needed_by_autograd((out,)))
    return None


def _find(known: KnownCalls, inp: Any, out: Any) -> tuple[CallPlan, int, int] | None:
    """The plan that is known for these tensors, and their addresses; None if there is none."""
    tensors = () if inp is None else (inp,) if out is inp else (inp, out)
    found = known.plans.get(known.find(known.table, 0, EXPORTER, *tensors))
    if found is None:
        return None
    plan, dtype = found
    if inp is None:
        return plan, 0, 0
    for tensor in tensors:  # of negative views (imag of a conjugate) only those with one element are contiguous
        if tensor.dtype is not dtype or (tensor.numel() == 1 and tensor.is_neg()):
            return None
    return plan, inp.data_ptr(), out.data_ptr()


@holds("group")
def run_plan(
    group: Group, plan: CallPlan, inp: int, out: int, timeout_s: float | None, where: str | None = None
) -> bool:
    """Run a plan on the tensors at these addresses. where: the user's line, if it is known.

    Returns False if system calls do not reach all tensors: the caller then plans the call anew, staged.
    """
    began = time.perf_counter()
    if group.lock.locked():
        check_nested(group)
    with group.lock:
        try:
            status = group.run(plan.address, inp, out, group.state)
            if status and not attend.attend(group, plan, inp, out, status, timeout_s, where or caller()):
                return False
        except BaseException as error:
            attend.interrupted(group, plan, error, where or caller())
            raise
    if group.host.config.debug:
        _debug_line(group, plan.record, plan.nbytes, plan.why, began)
    return True


def list_shortcut(
    group: Group | None, what: CallKey, inp: Any, out: Any, timeout_s: float | None, async_op: bool
) -> Any:
    """As `shortcut`, for calls with a list of tensors as input, output or both. None: this rank has no tensors."""
    if group is None:
        group = current.default
        if group is None:
            return UNKNOWN
    try:
        inputs, outputs = as_list(inp), as_list(out)
        key = what, -1 if is_one(inp) else len(inputs), -1 if is_one(out) else len(outputs)
        tensors = [*inputs, *outputs]
        plans = group.kept[ListShortcuts][key]
        if not have_strides(tensors):
            return UNKNOWN
        known = next(plan for plan in plans if plan.fits(*tensors))
        addresses = tuple(map(_data_ptr, tensors))
    except (AttributeError, KeyError, RuntimeError, StopIteration, TypeError):
        return UNKNOWN
    if not (timeout_s is None or (timeout_s.__class__ is float and timeout_s >= 0.0)):
        return UNKNOWN
    places = known.places(addresses)
    if places is None:
        return UNKNOWN
    plan = known.plan
    marked: Sequence[torch.Tensor] = ()
    if plan.writes and (known.tracked or max(map(use_count, outputs)) > 1):
        marked = needed_by_autograd(outputs)
    if async_op:  # the user's lists may change while the call waits
        inp, out = (given if given is None or is_one(given) else list(given) for given in (inp, out))
        return background.begin(group, what, plan, places, inp, out, timeout_s, marked)
    if group.worker is not None and group.worker.busy:  # calls in the background come first
        return UNKNOWN
    try:
        run_plan(group, plan, places[0], places[1], timeout_s)
    except BaseException as error:
        group.hold(plan, *tensors)
        if not isinstance(error, MismatchError) or not can_make_again(group, plan, what, error):
            raise
        return UNKNOWN
    if marked:
        mark_written(marked)
    return None


def _debug_line(group: Group, record: CallRecord, nbytes: int, why: str, began: float) -> None:
    """Write the line of UNISONO_DEBUG=1. nbytes: of a block. why: for this algorithm. began: by `perf_counter`."""
    took = format_seconds(time.perf_counter() - began)
    who = f"rank {group.rank} of group {group.name!r}" if group.parent else f"rank {group.rank}"
    tell(f"[{who}] {record.text}: {format_bytes(nbytes)} in {took}; {why}\n")
