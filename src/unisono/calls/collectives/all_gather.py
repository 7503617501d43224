"""all_gather: every rank gets the blocks of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_apart, check_own, check_tensor, check_tensors, check_whole
from ..dispatch import UNKNOWN, Call, Request, list_shortcut, shortcut


def all_gather(
    tensor_list: Sequence[Tensor] | Tensor | None,
    tensor: Tensor,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `tensor` of each rank r into tensor_list[r] of every rank.

    tensor: read; the same dtype on every rank, any size. tensor_list: written; one tensor per rank with that rank's
    number of elements, or one big tensor as in `all_gather_single`, or None if the sizes are not known: the call then
    returns a list of new tensors.
    """
    if isinstance(tensor_list, Tensor):
        return all_gather_single(tensor_list, tensor, group, async_op, algorithm=algorithm, timeout_s=timeout_s)
    what = "all_gather", None, 0, algorithm
    if (made := list_shortcut(group, what, tensor, tensor_list, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor)
        sizes = None
        if tensor_list is not None:
            sizes = check_tensors("tensor_list", tensor_list, call.group, tensor.dtype, written=True)
            check_apart(tensor_list, tensor, call.group.rank)
            check_own("tensor_list", tensor_list, "tensor", tensor, call.group)
        alike = sizes is not None and len(set(sizes)) == 1
        call.plan(Request("all_gather", tensor, tensor, tensor_list, alike=alike, sizes=sizes))
        call.returns = tensor_list is None
    return call.run()


def all_gather_single(
    output: Tensor,
    input: Tensor,  # noqa: A002  torch's name
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Put `input` of every rank, in rank order, into `output` of every rank.

    input: n elements, read. output: p·n elements of the same dtype, written. The input may be this rank's block of the
    output.
    """
    what = "all_gather", None, 0, algorithm
    if (made := shortcut(group, what, input, output, timeout_s, async_op)) is not UNKNOWN:
        return made
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("input", input)
        check_tensor("output", output, written=True)
        check_whole("output", output, "input", input, call.group)
        check_apart([output], input, 0, call.group.rank * input.numel() * input.element_size())
        call.plan(Request("all_gather", input, input, output))
    return call.run()
