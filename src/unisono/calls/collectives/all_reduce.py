"""all_reduce: every rank gets the combination of all ranks' tensors."""

from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_op, check_tensor
from ..dispatch import UNKNOWN, Call, Request, shortcut
from ..ops import OpLike, ReduceOp


def all_reduce(
    tensor: Tensor,
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Replace `tensor`, on every rank, by the combination of all ranks' tensors.

    tensor: of the CPU, any shape, the same dtype and number of elements on every rank; in place.
    op: `ReduceOp.SUM`, also by name (`"sum"`, `"avg"`, `"max"`), or one of `make_op`.
    group: its ranks make the call together; None: the default group.
    async_op: return a `Work` at once; the tensors are the call's until its `wait()` returns.
    algorithm: by name, your own, or a file such as "ring.xml"; None: `unisono explain` says which.
    timeout_s: how long to wait for the others; None: as long as the group does.

    Returns None, or the Work. All ranks have the same bits. Each rank sends and receives 2 (p-1)/p of the tensor's
    bytes, if it has more than a few KiB. Raises ArgumentError and DTypeError for what cannot be done with these
    tensors, MismatchError if the ranks make different calls (no tensor is touched then), PeerGone, PeerFailed and
    WaitTimeout.

        def work():
            tensor = torch.tensor([1, 10]) * (unisono.get_rank() + 1)
            unisono.all_reduce(tensor)
            return tensor.tolist()

        unisono.run(work, ranks=3)  # [[6, 60], [6, 60], [6, 60]]
    """
    what = "all_reduce", op, 0, algorithm
    if (made := shortcut(group, what, tensor, tensor, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor, written=True)
        call.plan(Request("all_reduce", tensor, tensor, tensor, check_op(op, tensor), in_place=True))
    return call.run()
