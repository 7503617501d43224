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
    """Replace `tensor` on rank `dst` by the combination of all ranks' tensors. Tensors of other ranks do not change.

    tensor: of the CPU, any shape, the same dtype and number of elements on every rank; written on `dst` only.
    dst: a rank of the group.
    op: as in `all_reduce`.
    group, async_op, algorithm, timeout_s, result, errors: as in `all_reduce`.

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
