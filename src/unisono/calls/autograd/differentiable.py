"""The differentiable collectives: argument checks, and ops that are not linear."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce as fold
from typing import Any

import torch

from ...base.errors import ArgumentError
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ..arguments import check_op, check_root, check_splits, check_tensor, check_tensors, shape_name
from ..dispatch import checking
from ..ops import OpLike, ReduceOp
from .linear import LinearCall, apply, join

_LINEAR = ("sum", "avg")
_OTHERS = ("product", "min", "max")


def all_reduce(tensor: torch.Tensor, op: OpLike = ReduceOp.SUM, group: Group | None = None) -> torch.Tensor:
    """Return the combination of all ranks' tensors, on every rank.

    tensor: the same shape and dtype on every rank.
    op: sum, avg, product, min or max. The last three gather the tensors of all ranks first, which takes p times the
    memory. The gradient of min and max is divided equally among the ranks that have the extreme value.
    """
    call = _checked("all_reduce", group, tensor, op)
    if call.op in _OTHERS:
        return _combine(call.op, all_gather(tensor, call.group))
    return apply(call, [tensor])[0]


def reduce(tensor: torch.Tensor, dst: int, op: OpLike = ReduceOp.SUM, group: Group | None = None) -> torch.Tensor:
    """Return the combination of all ranks' tensors on rank `dst`; on other ranks zeros, with ignored gradients.

    tensor, op: as in `all_reduce`.
    """
    call = _checked("reduce", group, tensor, op, ("dst", dst))
    if call.op in _OTHERS:
        blocks = gather(tensor, call.root, call.group)
        return _combine(call.op, blocks) if call.group.rank == call.root else join(torch.zeros_like(tensor), *blocks)
    return apply(call, [tensor])[0]


def broadcast(tensor: torch.Tensor, src: int, group: Group | None = None) -> torch.Tensor:
    """Return the tensor of rank `src`, on every rank.

    tensor: the same shape and dtype on every rank; only the values of rank `src` are used.
    """
    return apply(_checked("broadcast", group, tensor, root=("src", src)), [tensor])[0]


def scatter(tensors: Sequence[torch.Tensor] | None, src: int = 0, group: Group | None = None) -> torch.Tensor:
    """Return tensors[r] of rank `src` on each rank r.

    tensors: on `src` one tensor per rank, of one dtype, in any size; None elsewhere.
    """
    group = group_or_default(group)
    with checking(group, "scatter"):
        root = check_root("src", src, group)
        if group.rank == root:
            check_tensors("tensors", tensors, group)
        elif tensors:
            raise ArgumentError(f"tensors: only rank {root} (src) passes them; pass None on rank {group.rank}")
    return apply(LinearCall(group, "scatter", root=root), tensors or [])[0]


def gather(tensor: torch.Tensor, dst: int = 0, group: Group | None = None) -> tuple[torch.Tensor, ...]:
    """Return the tensors of all ranks, in rank order, on rank `dst`; p empty tensors on the others.

    tensor: the same dtype on every rank, in any size.
    """
    return apply(_checked("gather", group, tensor, root=("dst", dst)), [tensor])


def all_gather(tensor: torch.Tensor, group: Group | None = None) -> tuple[torch.Tensor, ...]:
    """Return the tensors of all ranks, in rank order, on every rank.

    tensor: the same dtype on every rank, in any size.
    """
    return apply(_checked("all_gather", group, tensor), [tensor])


def all_gather_single(tensor: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Return the tensors of all ranks, concatenated in rank order, on every rank.

    tensor: [n, ...], the same shape and dtype on every rank. Returns [p·n, ...].
    """
    return apply(replace(_checked("all_gather", group, tensor), collective="all_gather_single"), [tensor])[0]


def reduce_scatter(
    input_list: Sequence[torch.Tensor], op: OpLike = ReduceOp.SUM, group: Group | None = None
) -> torch.Tensor:
    """Return the combination of all ranks' input_list[r] on each rank r.

    input_list: one tensor per rank, of one dtype, with the same shapes on every rank.
    op: as in `all_reduce`.
    """
    group = group_or_default(group)
    _check_list("reduce_scatter", group, "input_list", input_list)
    call = _checked("reduce_scatter", group, input_list[0], op)
    if call.op in _OTHERS:
        return _combine(call.op, all_to_all(input_list, group))
    return apply(call, input_list)[0]


def reduce_scatter_single(tensor: torch.Tensor, op: OpLike = ReduceOp.SUM, group: Group | None = None) -> torch.Tensor:
    """Return block r of the combination of all ranks' tensors on each rank r.

    tensor: [p·n, ...], the same shape and dtype on every rank.
    op: as in `all_reduce`.

    Returns [n, ...].
    """
    call = _checked("reduce_scatter", group, tensor, op)
    blocks = _blocks(call, "tensor", tensor)
    if call.op in _OTHERS:
        return _combine(call.op, all_to_all(blocks, call.group))
    return apply(replace(call, collective="reduce_scatter_single"), [tensor])[0]


def all_to_all(input_tensor_list: Sequence[torch.Tensor], group: Group | None = None) -> tuple[torch.Tensor, ...]:
    """Return input_tensor_list[q] of all ranks, in rank order, on each rank q.

    input_tensor_list: one tensor per rank, of one dtype, in any size.
    """
    group = group_or_default(group)
    _check_list("all_to_all", group, "input_tensor_list", input_tensor_list)
    return apply(LinearCall(group, "all_to_all"), input_tensor_list)


def all_to_all_single(
    input: torch.Tensor,  # noqa: A002  torch's name
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Return block q of the inputs of all ranks, concatenated in rank order, on each rank q.

    input: [n, ...], of one dtype. Split sizes: the lengths of the blocks along the first dimension, one per rank;
    without them all blocks have the same size.
    """
    call = _checked("all_to_all", group, input)
    _blocks(call, "input", input, input_split_sizes)
    splits = (output_split_sizes, input_split_sizes)
    return apply(replace(call, collective="all_to_all_single", splits=splits), [input])[0]


def _checked(
    collective: str, group: Group | None, tensor: torch.Tensor, op: Any = None, root: tuple[str, int] | None = None
) -> LinearCall:
    """A call whose tensor, op and root have been checked. root: the name of its argument, and its value."""
    group = group_or_default(group)
    with checking(group, collective):
        check_tensor("tensor", tensor)
        name = check_op(op, tensor) if op is not None else "sum"
        if not isinstance(name, str) or name not in (*_LINEAR, *_OTHERS):
            raise ArgumentError(f"op: {op!r} has no gradient; use one of {', '.join((*_LINEAR, *_OTHERS))}")
        return LinearCall(group, collective, name, check_root(*root, group) if root else 0)


def _check_list(collective: str, group: Group, argument: str, tensors: Sequence[torch.Tensor]) -> None:
    with checking(group, collective):
        check_tensors(argument, tensors, group)


def _blocks(
    call: LinearCall, argument: str, tensor: torch.Tensor, sizes: Sequence[int] | None = None
) -> list[torch.Tensor]:
    with checking(call.group, call.collective):
        if not tensor.dim():
            raise ArgumentError(f"{argument}: is {shape_name(tensor)}; one number cannot be cut into blocks")
        return check_splits(argument, tensor, sizes, call.group)


def _combine(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if len({tensor.shape for tensor in tensors}) > 1:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ArgumentError(f"the ranks' tensors have the shapes {shapes}, in rank order; {name} needs the same on all")
    if name == "product":
        return fold(torch.mul, tensors)
    stacked = torch.stack(list(tensors))
    return stacked.amin(0) if name == "min" else stacked.amax(0)
