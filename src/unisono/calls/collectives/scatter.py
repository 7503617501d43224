"""scatter: every rank gets its block from one rank."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_root, check_rooted, check_tensor
from ..dispatch import Call, Request, plan_blocks


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int = 0,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Put scatter_list[r] of rank `src` into `tensor` of each rank r.

    tensor: of the CPU, written, with the number of elements of the rank's block.
    scatter_list: on `src` one tensor per rank, of one dtype, any size, read; None on other ranks.
    src: a rank of the group.
    group, async_op, algorithm, timeout_s, result, errors: as in `all_reduce`.

        def work():
            blocks = [torch.tensor([k, k + 10]) for k in range(3)] if unisono.get_rank() == 1 else None
            mine = torch.empty(2, dtype=torch.int64)
            unisono.scatter(mine, blocks, src=1)
            return mine.tolist()

        unisono.run(work, ranks=3)  # [[0, 10], [1, 11], [2, 12]]
    """
    what = "scatter", None, src, algorithm
    with Call(what, group, async_op, timeout_s) as call:
        root = check_root("src", src, call.group)
        check_tensor("tensor", tensor, written=True)
        blocks = check_rooted("scatter_list", scatter_list, "src", root, tensor, call.group, written=False)
        plan_blocks(call, Request("scatter", tensor, blocks, tensor, root=root))
    return call.run()
