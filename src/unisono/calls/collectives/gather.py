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
    """Collect the tensors of all ranks on rank `dst`: the tensor of rank r goes to `gather_list[r]`.

    Args:
        tensor: CPU tensor of any size, with the same dtype on every rank.
        gather_list: On `dst`, one CPU tensor for each rank, with as many elements as that rank sends. None on the other
            ranks.
        dst: The rank that gets the tensors.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.

    Example::

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
