"""all_reduce: every rank ends with the combination of all ranks' tensors."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments import check_op, check_tensor
from ..dispatch import Request, combine, default_group, entering, finish_plan
from ..engine.written import mark_written, needed_by_autograd, use_count
from ..membership.current import get_default
from ..membership.group import Group
from ..ops import ReduceOp
from ..watch import caller, interrupted
from ..work import Work

__all__ = ["all_reduce"]


def all_reduce(
    tensor: torch.Tensor,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Replace `tensor`, on every rank, by the combination of all ranks' tensors.

    tensor: any shape, the same dtype and number of elements on every rank; in place. Moves 2 (p-1)/p of its bytes
    from and to each rank, for tensors above a few KiB.
    """
    if group is None:
        group = get_default() or default_group()
    # The one call whose latency is all that counts: what `known_plan` and `run_plan` do for the others, unrolled.
    try:
        pointer = tensor.data_ptr()
        shared = group.heap_first <= pointer < group.heap_end
        count = tensor.numel()
        plan = group.plans[tensor.dtype, count, op, algorithm, shared]
        # Of negative views (imag of a conjugate) only those with one element are contiguous.
        fast = pointer and tensor.is_contiguous() and tensor.is_cpu and (count != 1 or not tensor.is_neg())
        fast = fast and not async_op and (timeout_s is None or timeout_s.__class__ is float)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        fast = False
    if fast and (group.worker is None or not group.worker.busy):
        group.lock.acquire()
        try:
            if status := group.run(plan.address, pointer, pointer, group.state):
                finish_plan(group, plan, pointer, pointer, timeout_s, status)
        except BaseException as error:
            interrupted(group, plan, error, caller())
            raise
        finally:
            group.lock.release()
        if tensor.requires_grad or use_count(tensor) > 1:
            mark_written(needed_by_autograd((tensor,)))
        return None
    with entering(group, "all_reduce"):
        check_tensor("tensor", tensor, written=True)
        request = Request("all_reduce", tensor, tensor, tensor, check_op(op, tensor), in_place=True)
    return combine(group, request, async_op, algorithm, timeout_s, ("all_reduce", op, algorithm))
