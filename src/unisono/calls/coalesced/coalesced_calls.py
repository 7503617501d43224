"""The public coalesced calls: each states which of its tensors are read and written.

`flatten_` places tensors side by side in shared memory, the fastest way to send many tensors repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.tensors import as_bits, set_memory
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_tensor
from ..dispatch import checking
from ..ops import OpLike, ReduceOp
from ..work import Work
from .make_coalesced import PART, WHOLE, ListCall, make, make_known


def all_reduce_coalesced(
    tensors: Iterable[torch.Tensor],
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Work[Sequence[torch.Tensor]] | None:
    """Replace tensors[k], on every rank, by the combination of all ranks' tensors[k], for each k.

    tensors: any shapes, dtypes and layouts, in place; no two may share memory. Every rank passes the same dtypes and
    numbers of elements in the same order. Makes one all_reduce per dtype and MiB.
    """
    parts = _listed(group, "all_reduce", "tensors", tensors)
    return make(_reducing(parts, op), group, async_op, algorithm, timeout_s)


def all_reduce_known(
    tensors: Sequence[torch.Tensor], op: OpLike, group: Group, async_op: bool, *, timeout_s: float | None
) -> Any:
    """`all_reduce_coalesced`, if such a call has been planned before; else UNKNOWN."""
    return make_known(_reducing(tensors, op), group, async_op, None, timeout_s)


def _reducing(tensors: Sequence[torch.Tensor], op: OpLike) -> ListCall:
    return ListCall("all_reduce", ("tensors",), tensors, gives=PART, gets=PART, op=op)


def broadcast_coalesced(
    tensors: Iterable[torch.Tensor],
    src: int,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Work[Sequence[torch.Tensor]] | None:
    """Replace tensors[k], on every rank, by tensors[k] of rank `src`, for each k.

    tensors: as in `all_reduce_coalesced`. Makes one broadcast per dtype and MiB.
    """
    parts = _listed(group, "broadcast", "tensors", tensors)
    gives, gets = (PART, None) if group_or_default(group).rank == src else (None, PART)
    call = ListCall("broadcast", ("tensors",), parts, gives=gives, gets=gets, src=src)
    return make(call, group, async_op, algorithm, timeout_s)


def all_gather_coalesced(
    outputs: Iterable[torch.Tensor],
    inputs: Iterable[torch.Tensor],
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Work[Sequence[torch.Tensor]] | None:
    """Put inputs[k] of every rank, in rank order, into outputs[k] of every rank, for each k.

    inputs: any shapes, dtypes and layouts; read.
    outputs: for an input of n elements, p·n elements of the same dtype; written.

    Every rank passes the same dtypes and numbers of elements in the same order.
    """
    parts = _listed(group, "all_gather", "inputs", inputs)
    wholes = _listed(group, "all_gather", "outputs", outputs)
    call = ListCall("all_gather", ("inputs", "outputs"), parts, wholes, gives=PART, gets=WHOLE)
    return make(call, group, async_op, algorithm, timeout_s)


def reduce_scatter_coalesced(
    outputs: Iterable[torch.Tensor],
    inputs: Iterable[torch.Tensor],
    op: OpLike = ReduceOp.SUM,
    group: Group | None = None,
    async_op: bool = False,
    *,
    algorithm: AlgorithmLike | None = None,
    timeout_s: float | None = None,
) -> Work[Sequence[torch.Tensor]] | None:
    """Put block r of the combination of all ranks' inputs[k] into outputs[k] of each rank r, for each k.

    outputs: any shapes, dtypes and layouts; written.
    inputs: for an output of n elements, p·n elements of the same dtype; read.

    Every rank passes the same dtypes and numbers of elements in the same order.
    """
    parts = _listed(group, "reduce_scatter", "outputs", outputs)
    wholes = _listed(group, "reduce_scatter", "inputs", inputs)
    call = ListCall("reduce_scatter", ("outputs", "inputs"), parts, wholes, gives=WHOLE, gets=PART, op=op)
    return make(call, group, async_op, algorithm, timeout_s)


def _listed(group: Group | None, collective: str, argument: str, tensors: Any) -> Sequence[torch.Tensor]:
    if isinstance(tensors, list | tuple):
        return list(tensors)
    with checking(group, collective):
        if isinstance(tensors, torch.Tensor | np.ndarray) or not isinstance(tensors, Iterable):
            raise DTypeError(f"{argument}: expected a list of tensors, got {type(tensors).__name__}")
        return list(tensors)


def flatten_(tensors: Iterable[torch.Tensor], group: Group | None = None) -> list[torch.Tensor]:
    """Move the data of tensors into one flat tensor per dtype, in shared memory; return the flat tensors.

    The tensors stay the same objects with the same values, as with `share_`, and are views of the flat ones. So one
    call on a flat tensor is a call on all its tensors, without a copy:

        (flat,) = unisono.flatten_(parameter.grad for parameter in model.parameters())
        unisono.all_reduce(flat, "avg")

    If shared memory is full, the flat tensors are private, and calls on them are staged. Raises ArgumentError for other
    tensors than these:

    tensors: contiguous CPU tensors, parameters included; none twice. Earlier views of them keep the old memory.
    """
    group, tensors = group_or_default(group), list(tensors)
    group.check_usable()
    for k, tensor in enumerate(tensors):
        check_tensor(f"tensors[{k}]", tensor, written=True)
        if not tensor.is_contiguous():
            raise ArgumentError(f"tensors[{k}]: only contiguous tensors can be moved; call .contiguous() first")
    if len({id(tensor) for tensor in tensors}) < len(tensors):
        raise ArgumentError("tensors: one of them is there twice; pass each once")
    flats = []
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        mine = [tensor for tensor in tensors if tensor.dtype is dtype]
        counts = [tensor.numel() for tensor in mine]
        flat = group.buffer(sum(counts), dtype)
        for tensor, piece in zip(mine, torch.split(flat, counts), strict=True):
            as_bits(piece).copy_(as_bits(tensor.detach()).view(-1))
            set_memory(tensor, piece)
        flats.append(flat)
    return flats
