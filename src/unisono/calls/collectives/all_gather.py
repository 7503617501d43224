"""all_gather: every rank gets the blocks of all ranks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...base.errors import ArgumentError
from ...base.records import CallRecord
from ...engine.tensors import dtype_name
from ...ranks.group.group import Group
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import blank, check_apart, check_own, check_tensor, check_tensors, check_whole
from ..dispatch import UNKNOWN, Call, Request, checking, plan, shortcut, unequal

_MOST_DIMS = 8


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

    tensor: of the CPU, read; the same dtype on every rank, any size.
    tensor_list: written; one tensor per rank with that rank's number of elements, or one big tensor as in
    `all_gather_single`, or None on all ranks if sizes are not known: the call then gathers the shapes first, and
    returns a list of new tensors.
    group: its ranks make the call together; None: the default group.
    async_op: return a `Work` at once; the tensors are the call's until its `wait()` returns.
    algorithm: by name, or your own; None: `unisono explain` says which.
    timeout_s: how long to wait for the others; None: as long as the group does.

    Returns None, the Work, or the new tensors, which the Work's `wait()` returns with async_op. Raises ArgumentError
    and DTypeError for what cannot be done with these tensors, MismatchError if the ranks make different calls (no
    tensor is touched then), PeerGone, PeerFailed and WaitTimeout.

        def work():
            parts = unisono.all_gather(None, torch.full((unisono.get_rank(),), 7))
            return [part.tolist() for part in parts]

        unisono.run(work, ranks=3)[0]  # [[], [7], [7, 7]]
    """
    if isinstance(tensor_list, Tensor):
        return all_gather_single(tensor_list, tensor, group, async_op, algorithm=algorithm, timeout_s=timeout_s)
    if tensor_list is None:
        return _gather_of_unknown_sizes(tensor, group, async_op, algorithm, timeout_s)
    what = "all_gather", None, 0, algorithm
    with Call(what, group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor)
        sizes = check_tensors("tensor_list", tensor_list, call.group, tensor.dtype, written=True)
        check_apart(tensor_list, tensor, call.group.rank)
        check_own("tensor_list", tensor_list, "tensor", tensor, call.group)
        call.plan(_request(tensor, tensor_list, sizes))
    return call.run()


def _request(tensor: Tensor, tensors: Sequence[Tensor], sizes: Sequence[int]) -> Request:
    extents = unequal(sizes)
    like = blank(max(sizes), tensor.dtype) if extents else tensor
    return Request("all_gather", like, tensor, tensors, extents=extents)


def _gather_of_unknown_sizes(
    tensor: Tensor, group: Group | None, async_op: bool, algorithm: AlgorithmLike | None, timeout_s: float | None
) -> Any:
    """Gather the shapes of all ranks' tensors, then the tensors into new ones of these shapes."""
    with Call(("all_gather", None, 0, algorithm), group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor)
        if tensor.is_quantized:
            raise ArgumentError("tensor: is quantized, and tensor_list is None. Pass tensor_list, or .int_repr()")
        if tensor.dim() > _MOST_DIMS:
            raise ArgumentError(
                f"tensor: has {tensor.dim()} dimensions, but at most {_MOST_DIMS} are possible if tensor_list is None. "
                "Pass tensor_list, or flatten the tensor"
            )
        padding = [0] * (_MOST_DIMS - tensor.dim())
        shape = torch.tensor([tensor.dim(), *tensor.shape, *padding], device="cpu")
        shapes = torch.empty(call.group.size, len(shape), dtype=shape.dtype, device="cpu")
        says = CallRecord("all_gather", dtype_name(tensor.dtype), words="of unknown sizes")
        group, call.record = call.group, says
        gather_shapes = plan(group, Request("all_gather", shape, shape, shapes, says=says), None, timeout_s)

        def action(where: str | None) -> list[Tensor]:
            with checking(group, "all_gather") as steps:
                gather_shapes(where)
                made = [torch.empty(row[1 : row[0] + 1], dtype=tensor.dtype, device="cpu") for row in shapes.tolist()]
                sizes = [each.numel() for each in made]
                gather = plan(group, _request(tensor, made, sizes), algorithm, timeout_s)
                steps.last = group.engine.call_number
                gather(where)
            return made

        call.action, call.returns = action, True
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

    input: n elements, read.
    output: p·n elements of the same dtype, written. The input may be this rank's block of the output.
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


all_gather_into_tensor = all_gather_single
