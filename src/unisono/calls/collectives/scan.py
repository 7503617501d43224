"""scan and exscan: every rank gets the combination of the ranks before it, with or without its own tensor."""

from typing import Any

from torch import Tensor

from ...base.errors import ArgumentError
from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_op, check_tensor
from ..dispatch import UNKNOWN, Call, Request, shortcut
from ..ops import OpLike, ReduceOp


def scan(
    tensor: Tensor,
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Combine the tensors of ranks 0 to r on each rank r; the result replaces `tensor`.

    Args:
        tensor: CPU tensor of any shape, with the same dtype and number of elements on every rank.
        op: As in `all_reduce`, except avg.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    return _scan("scan", tensor, op, group, async_op, algorithm, timeout_s)


def exscan(
    tensor: Tensor,
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Combine the tensors of ranks 0 to r - 1 on each rank r; the result replaces `tensor`, except on rank 0.

    Args:
        tensor: CPU tensor of any shape, with the same dtype and number of elements on every rank.
        op: As in `all_reduce`, except avg.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
    """
    return _scan("exscan", tensor, op, group, async_op, algorithm, timeout_s)


def _scan(
    collective: str, tensor: Tensor, op: OpLike, group: Group | None, async_op: bool, algorithm: AlgorithmLike | None,
    timeout_s: float | None,
) -> Any:  # fmt: skip
    what = collective, op, 0, algorithm
    if (made := shortcut(group, what, tensor, tensor, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor, written=True)
        name = check_op(op, tensor)
        if name == "avg":
            raise ArgumentError(
                f"op: got avg, which {collective} does not have. Use sum, and divide by the number of ranks combined."
            )
        call.plan(Request(collective, tensor, tensor, tensor, name, in_place=True))
    return call.run()
