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
from ..arguments import check_apart, check_blocks, check_tensor, check_whole
from ..dispatch import UNKNOWN, Call, Request, plan_after, shortcut

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
    """Collect the tensors of all ranks on every rank: the tensor of rank r goes to `tensor_list[r]`.

    Args:
        tensor_list: One CPU tensor for each rank, with as many elements as that rank sends; or one tensor for all, as
            in `all_gather_single`. None on all ranks: the call exchanges the shapes and returns new tensors.
        tensor: CPU tensor of any size, with the same dtype on every rank.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same errors.

    Returns:
        None, or a list of new tensors if `tensor_list` is None. A `Work`, whose `result()` is the list, if `async_op`
        is true.

    Example::

        def work():
            parts = unisono.all_gather(None, torch.full((unisono.get_rank(),), 7))
            return [part.tolist() for part in parts]

        unisono.run(work, ranks=3)[0]  # [[], [7], [7, 7]]
    """
    if isinstance(tensor_list, Tensor):
        return all_gather_single(tensor_list, tensor, group, async_op, algorithm=algorithm, timeout_s=timeout_s)
    with Call(("all_gather", None, 0, algorithm), group, async_op, timeout_s) as call:
        check_tensor("tensor", tensor)
        if tensor_list is None:
            _gather_shapes_first(call, tensor)
        else:
            sizes = check_blocks("tensor_list", tensor_list, "tensor", tensor, call.group, written=True)
            call.plan(Request("all_gather", tensor, tensor, tensor_list).sized(sizes))
    return call.run()


def _gather_shapes_first(call: Call, tensor: Tensor) -> None:
    """Plan a call that gathers the shapes of all ranks' tensors, then the tensors into new ones of these shapes."""
    if tensor.is_quantized:
        raise ArgumentError("tensor: got a quantized tensor without tensor_list. Pass tensor_list, or .int_repr().")
    if tensor.dim() > _MOST_DIMS:
        raise ArgumentError(
            f"tensor: got {tensor.dim()} dimensions, expected at most {_MOST_DIMS} without tensor_list. Pass "
            "tensor_list, or flatten the tensor."
        )
    dtype, alike = tensor.dtype, Request("all_gather", tensor, tensor, None)

    def request(rows: Sequence[Sequence[int]], _: str | None) -> Request:
        made = [torch.empty(shape[:dims], dtype=dtype, device="cpu") for dims, *shape in rows]
        return alike._replace(out=made).sized([each.numel() for each in made])

    row = [tensor.dim(), *tensor.shape, *[0] * (_MOST_DIMS - tensor.dim())]
    plan_after(call, alike, row, CallRecord("all_gather", dtype_name(dtype), words="of unknown sizes"), request)
    call.returns = True


def all_gather_single(
    output: Tensor,
    input: Tensor,  # noqa: A002  torch's name
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Any:
    """Concatenate the tensors of all ranks, in rank order, in `output` of every rank.

    Args:
        output: CPU tensor of p·n elements for p ranks.
        input: CPU tensor of n elements and the same dtype. It may be this rank's part of the output.
        group, async_op, algorithm, timeout_s: As in `all_reduce`, with the same result and errors.
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
