"""The fast path: an earlier call's plan, found and run with as few steps as Python allows."""

from __future__ import annotations

import torch

from ..engine.bind import Plan
from ..engine.written import mark_written, needed_by_autograd, use_count
from ..membership.group import Group
from ..units import seconds
from ..watch import attend, caller, interrupted

__all__ = ["finish_plan", "forget", "in_heap", "keep", "known_plan", "run_known", "run_plan"]


def known_plan(group: Group, inp: torch.Tensor, out: torch.Tensor, *what: object) -> Plan | None:
    """The plan of an earlier call like this one, if it can be run at once: the fast path of calls on whole tensors."""
    try:
        first, last = group.heap_first, group.heap_end
        a = b = inp.data_ptr()
        count = size = inp.numel()
        if out is not inp:
            b, size = out.data_ptr(), out.numel()
            if (a < b + out.nbytes and b < a + inp.nbytes) or out.dtype is not inp.dtype:
                return None
            if not b or not (out.is_contiguous() and out.is_cpu) or (size == 1 and out.is_neg()):
                return None
        plan = group.plans.get((what, inp.dtype, count, size, first <= a < last, first <= b < last))
        if plan is None or not a or not (inp.is_contiguous() and inp.is_cpu) or (count == 1 and inp.is_neg()):
            return None
        # Whatever runs in the background comes first.
        return plan if group.worker is None or not group.worker.busy else None  # noqa: TRY300  one way through
    except (AttributeError, RuntimeError, TypeError):
        return None


def keep(group: Group, plan: Plan, what: tuple[object, ...], inp: torch.Tensor, out: torch.Tensor) -> None:
    """Let the fast path find the plan: `known_plan`, or for a tensor in place its own unrolled look-up."""
    if inp.is_complex() or inp.is_quantized:
        return  # the fast path does not look for conjugate views and scales
    where = in_heap(group, inp), in_heap(group, out)
    key: tuple[object, ...] = (what, inp.dtype, inp.numel(), out.numel(), *where)
    if what[0] == "all_reduce":
        key = (inp.dtype, inp.numel(), *what[1:], where[0])
    group.plans[key] = plan


def forget(group: Group, collective: str) -> None:
    """Let calls of this collective take the long way again."""
    for key in list(group.plans):
        if isinstance(key[0], tuple) and key[0][0] == collective:
            del group.plans[key]


def in_heap(group: Group, tensor: torch.Tensor) -> bool:
    """Does the tensor lie in shared memory?"""
    return group.heap_first <= tensor.data_ptr() < group.heap_end


def run_known(
    group: Group, plan: Plan, inp: torch.Tensor, out: torch.Tensor, timeout_s: float | None, *, writes: bool = True
) -> None:
    """Run what `known_plan` has found. writes: does this rank get anything?"""
    run_plan(group, plan, inp.data_ptr(), out.data_ptr(), timeout_s)
    if writes and (out.requires_grad or use_count(out) > 1):
        mark_written(needed_by_autograd((out,)))


def run_plan(group: Group, plan: Plan, inp: int, out: int, timeout_s: float | None, where: str | None = None) -> None:
    """Run a plan on these addresses, and come back when it is done."""
    if timeout_s is not None:
        timeout_s = seconds(timeout_s)
    with group.lock:
        try:
            if status := group.run(plan.address, inp, out, group.state):
                finish_plan(group, plan, inp, out, timeout_s, status, where)
        except BaseException as error:
            interrupted(group, plan, error, where or caller())
            raise


def finish_plan(
    group: Group, plan: Plan, inp: int, out: int, timeout_s: float | None, status: int, where: str | None = None
) -> None:
    """Bring a run to its end that came back with this status."""
    attend(group, plan, lambda: group.run(plan.address, inp, out, group.state), status, timeout_s, where or caller())
