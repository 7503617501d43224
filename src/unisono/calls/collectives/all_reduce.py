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
    """Combine the tensors of all ranks with `op`; on every rank the result replaces `tensor`.

    All ranks get the same bits.

    Args:
        tensor: CPU tensor of any shape, with the same dtype and number of elements on every rank.
        op: A `ReduceOp`, its name such as "sum", "avg" or "max", or an op that `make_op` made.
        group: The group; all its ranks make the call. None: the default group.
        async_op: Return a `Work` at once. Do not read or write the tensor until its `wait()` has returned.
        algorithm: A name, an algorithm of your own, or a file such as "ring.xml". None: chosen by the tensor's size;
            `unisono explain` shows the choice.
        timeout_s: Seconds to wait for other ranks. None: the group's `timeout_s`.

    Returns:
        None, or a `Work` if `async_op` is true.

    Raises:
        ArgumentError, DTypeError: This call cannot take these arguments.
        MismatchError: The ranks made different calls. No tensor has changed.
        PeerGone, PeerFailed: Another rank died or gave up.
        WaitTimeout: Another rank did not make the call in time.

    Example::

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
