"""gather: one rank gets the blocks of all ranks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_root, check_rooted, check_tensor
from ..dispatch import Call, Request, plan_blocks


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
    dst: int = 0,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `tensor` of each rank r into gather_list[r] of rank `dst`.

    tensor: of the CPU, read; the same dtype on every rank, any size.
    gather_list: on `dst` one tensor per rank with that rank's number of elements, written; None on other ranks.
    dst: a rank of the group.
    group, async_op, algorithm, timeout_s, result, errors: as in `all_reduce`.

        def work():
            rank = unisono.get_rank()
            parts = [torch.empty(2, dtype=torch.int64) for _ in range(3)] if rank == 0 else None
            unisono.gather(torch.tensor([rank, rank * rank]), parts, dst=0)
            return parts and [part.tolist() for part in parts]

        unisono.run(work, ranks=3)  # [[[0, 0], [1, 1], [2, 4]], None, None]
    """
    what = "gather", None, dst, algorithm
    with Call(what, group, async_op, timeout_s) as call:
        root = check_root("dst", dst, call.group)
        check_tensor("tensor", tensor)
        blocks = check_rooted("gather_list", gather_list, "dst", root, tensor, call.group, written=True)
        plan_blocks(call, Request("gather", tensor, tensor, blocks, root=root))
    return call.run()
