"""broadcast: every rank ends with the tensor of one."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments import check_root, check_tensor
from ..dispatch import Request, default_group, entering, known_plan, perform, run_known
from ..membership.group import Group
from ..work import Work

__all__ = ["broadcast"]


def broadcast(
    tensor: torch.Tensor,
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Work | None:
    """Replace `tensor`, on every rank, by that of rank `src`.

    tensor: any shape, the same dtype and number of elements on every rank; in place.
    """
    group = default_group() if group is None else group
    if not async_op and (plan := known_plan(group, tensor, tensor, "broadcast", None, src, algorithm)):
        run_known(group, plan, tensor, tensor, timeout_s, writes=group.rank != src)
        return None
    with entering(group, "broadcast"):
        root = check_root("src", src, group)
        check_tensor("tensor", tensor, written=group.rank != root)
        request = Request("broadcast", tensor, tensor, tensor, root=root, in_place=True)
    return perform(group, request, async_op, algorithm, timeout_s, ("broadcast", None, src, algorithm))
