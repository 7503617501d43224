"""broadcast: every rank gets the tensor of one rank."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_root, check_tensor
from ..dispatch import UNKNOWN, Call, Request, shortcut


def broadcast(
    tensor: Tensor,
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Replace `tensor`, on every rank, by that of rank `src`.

    tensor: any shape, the same dtype and number of elements on every rank; in place.
    """
    what = "broadcast", None, src, algorithm
    if (made := shortcut(group, what, tensor, tensor, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        root = check_root("src", src, call.group)
        check_tensor("tensor", tensor, written=call.group.rank != root)
        call.plan(Request("broadcast", tensor, tensor, tensor, root=root, in_place=True))
    return call.run()
