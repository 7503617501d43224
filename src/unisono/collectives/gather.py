"""gather: one rank ends with the blocks of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..arguments import check_apart, check_own, check_root, check_rooted, check_tensor, given_list
from ..dispatch import Exchange, Request, default_group, entering, exchange
from ..membership.group import Group

__all__ = ["gather"]


def gather(
    tensor: torch.Tensor,
    gather_list: Sequence[torch.Tensor] | None = None,
    dst: int = 0,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: Any = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `tensor` of each rank r into gather_list[r] of rank `dst`.

    tensor: read; the same dtype on every rank, in any size. gather_list: on `dst` one tensor per rank, of the number of
    elements of that rank's, written; None elsewhere. None on `dst`, too, where the sizes are not known: then the call
    returns the list there, of new tensors.
    """
    group = default_group() if group is None else group
    with entering(group, "gather"):
        root = check_root("dst", dst, group)
        check_tensor("tensor", tensor)
        blocks, plain = given_list(gather_list), None
        sizes = check_rooted("gather_list", blocks, "dst", root, group, tensor.dtype, written=True)
        if blocks is not None:
            check_apart(blocks, tensor, root)
            check_own("gather_list", blocks, "tensor", tensor, group)
        if group.rank != root or (blocks is not None and len(set(sizes)) == 1):
            plain = Request("gather", tensor, tensor, blocks, root=root)
        call = Exchange("gather", tensor, blocks, plain, root=root)
    return exchange(group, call, async_op, algorithm, timeout_s)
