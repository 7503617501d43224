"""broadcast: every rank gets the tensor of one rank."""

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
    """Copy the tensor of rank `src` to all ranks, in place.

    Args:
        tensor: CPU tensor of any shape, with the same dtype and number of elements on every rank; read on `src`,
            written on the others.
        src: The rank whose tensor is copied.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.

    Example::

        def work():
            tensor = torch.full((2,), unisono.get_rank())
            unisono.broadcast(tensor, src=2)
            return tensor.tolist()

        unisono.run(work, ranks=3)  # [[2, 2], [2, 2], [2, 2]]
    """
    what = "broadcast", None, src, algorithm
    if (made := shortcut(group, what, tensor, tensor, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        root = check_root("src", src, call.group)
        check_tensor("tensor", tensor, written=call.group.rank != root)
        call.plan(Request("broadcast", tensor, tensor, tensor, root=root, in_place=True))
    return call.run()
