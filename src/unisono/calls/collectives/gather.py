"""gather: one rank gets the blocks of all ranks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_apart, check_own, check_root, check_rooted, check_tensor, given_list
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
    group: its ranks make the call together; None: the default group.
    async_op: return a `Work` at once; the tensors are the call's until its `wait()` returns.
    algorithm: by name, or your own; None: `unisono explain` says which.
    timeout_s: how long to wait for the others; None: as long as the group does.

    Returns None or the Work. Raises ArgumentError and DTypeError for what cannot be done with these tensors,
    MismatchError if the ranks make different calls (no tensor is touched then), PeerGone, PeerFailed and WaitTimeout.

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
        blocks = given_list(gather_list)
        check_rooted("gather_list", blocks, "dst", root, call.group, tensor.dtype, written=True)
        if blocks is not None:
            check_apart(blocks, tensor, root)
            check_own("gather_list", blocks, "tensor", tensor, call.group)
        plan_blocks(call, Request("gather", tensor, tensor, blocks, root=root))
    return call.run()
