"""reduce: one rank gets the combination of all ranks' tensors."""

from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_op, check_root, check_tensor
from ..dispatch import UNKNOWN, Call, Request, shortcut
from ..ops import OpLike, ReduceOp


def reduce(
    tensor: Tensor,
    dst: int,
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Combine the tensors of all ranks with `op`; the result replaces `tensor` on rank `dst` only.

    Args:
        tensor: CPU tensor of any shape, with the same dtype and number of elements on every rank.
        dst: The rank that gets the result.
        op, group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.

    Example::

        def work():
            tensor = torch.tensor([unisono.get_rank() + 1])
            unisono.reduce(tensor, dst=0)
            return tensor.tolist()

        unisono.run(work, ranks=3)  # [[6], [2], [3]]
    """
    what = "reduce", op, dst, algorithm
    if (made := shortcut(group, what, tensor, tensor, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        root = check_root("dst", dst, call.group)
        check_tensor("tensor", tensor, written=call.group.rank == root)
        call.plan(Request("reduce", tensor, tensor, tensor, check_op(op, tensor), root, in_place=True))
    return call.run()
