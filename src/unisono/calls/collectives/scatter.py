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
    """Give each rank its tensor of a list on rank `src`: rank r gets `scatter_list[r]`.

    Args:
        tensor: CPU tensor that receives this rank's part, with the same number of elements.
        scatter_list: On `src`, one CPU tensor for each rank, of one dtype and any sizes. None on the other ranks.
        src: The rank that has the list.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.

    Example::

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
