"""reduce: one rank ends with the combination of all ranks' tensors."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments import check_op, check_root, check_tensor
from ..dispatch import Call, Request, shortcut
from ..membership.group import Group
from ..ops import ReduceOp
from ..work import Work

__all__ = ["reduce"]


def reduce(
    tensor: torch.Tensor,
    dst: int,
    op: Any = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Replace `tensor` on rank `dst` by the combination of all ranks' tensors; the others' stay as they were.

    tensor: any shape, the same dtype and number of elements on every rank; in place on `dst`.
    """
    what = "reduce", op, dst, algorithm
    if not async_op and shortcut(group, what, tensor, tensor, timeout_s):
        return None
    with Call(what, group, async_op, timeout_s) as call:
        root = check_root("dst", dst, call.group)
        check_tensor("tensor", tensor, written=call.group.rank == root)
        call.plan(Request("reduce", tensor, tensor, tensor, check_op(op, tensor), root, in_place=True))
    return call.run()
