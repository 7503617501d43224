"""reduce: one rank ends with the combination of all ranks' tensors."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments import check_op, check_root, check_tensor
from ..dispatch import Request, combine, default_group, entering, known_plan, run_known
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
    group = default_group() if group is None else group
    if not async_op and (plan := known_plan(group, tensor, tensor, "reduce", op, dst, algorithm)):
        run_known(group, plan, tensor, tensor, timeout_s, writes=group.rank == dst)
        return None
    with entering(group, "reduce"):
        root = check_root("dst", dst, group)
        check_tensor("tensor", tensor, written=group.rank == root)
        request = Request("reduce", tensor, tensor, tensor, check_op(op, tensor), root, in_place=True)
    return combine(group, request, async_op, algorithm, timeout_s, ("reduce", op, dst, algorithm))
