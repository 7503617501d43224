"""all_reduce: every rank gets the combination of all ranks' tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_op, check_tensor
from ..dispatch import UNKNOWN, Call, Request, shortcut
from ..ops import OpLike, ReduceOp


def all_reduce(
    tensor: Tensor,
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Replace `tensor`, on every rank, by the combination of all ranks' tensors.

    tensor: any shape, the same dtype and number of elements on every rank; in place. Each rank sends and receives
    2 (p-1)/p of its bytes, if it has more than a few KiB.
    """
    what = "all_reduce", op, 0, algorithm
    if (made := shortcut(group, what, tensor, tensor, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor, written=True)
        call.plan(Request("all_reduce", tensor, tensor, tensor, check_op(op, tensor), in_place=True))
    return call.run()
