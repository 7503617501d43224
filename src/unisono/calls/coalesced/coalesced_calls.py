"""The public coalesced calls: each states which of its tensors are read and written. `coalescing` collects them.

`flatten_` places tensors side by side in shared memory, the fastest way to send many tensors repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ...base.errors import ArgumentError, DTypeError
from ...base.units import hints_timeout_s
from ...engine.tensors import as_bits
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ...schedule.algorithms.catalogue import AlgorithmLike
from ..arguments import check_tensor
from ..dispatch import checking, refuse
from ..ops import OpLike, ReduceOp, resolve
from ..work import Work
from .make_coalesced import PART, WHOLE, ListCall, make


@hints_timeout_s
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
    call = ListCall("all_reduce", ("tensors",), parts, gives=PART, gets=PART, op=op)
    return make(call, group, async_op, algorithm, timeout_s)


@hints_timeout_s
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


@hints_timeout_s
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


@hints_timeout_s
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


_Call = Callable[..., Work[Any] | None]
_TWO_LISTS = (all_gather_coalesced, reduce_scatter_coalesced)
"""The calls that take outputs and inputs; the others take one list for both."""


class Coalescing:
    """What `coalescing` yields: it collects calls, and makes them when its block ends."""

    def __init__(self, group: Group, async_op: bool, timeout_s: float | None) -> None:
        self._group, self._async_op, self._timeout_s = group, async_op, timeout_s
        self._runs: list[tuple[_Call, tuple[Any, ...], list[torch.Tensor], list[torch.Tensor]]] = []
        self._written: set[int] = set()
        self._read: set[int] = set()
        self._works: list[Work[Any]] = []

    def all_reduce(self, tensor: torch.Tensor, op: OpLike = ReduceOp.SUM) -> None:
        """Replace `tensor` by the combination of all ranks' tensors."""
        self._add(all_reduce_coalesced, (resolve(op),), tensor, tensor)

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        """Replace `tensor` by the tensor of rank `src`."""
        self._add(broadcast_coalesced, (src,), tensor, tensor)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor) -> None:  # noqa: A002  torch's name
        """Put `input` of every rank, in rank order, into `output`."""
        self._add(all_gather_coalesced, (), output, input)

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002  torch's name
        op: OpLike = ReduceOp.SUM,
    ) -> None:
        """Put this rank's block of the combination of all ranks' inputs into `output`."""
        self._add(reduce_scatter_coalesced, (resolve(op),), output, input)

    def wait(self) -> None:
        """Wait until the calls have ended, if they were made with `async_op=True`."""
        for work in self._works:
            work.wait()

    def __enter__(self) -> Coalescing:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            refuse(self._group, "coalescing", error)
            return
        for call, detail, outputs, inputs in self._runs:
            lists = (outputs, inputs) if call in _TWO_LISTS else (outputs,)
            work = call(*lists, *detail, self._group, self._async_op, timeout_s=self._timeout_s)
            if work is not None:
                self._works.append(work)

    def _add(self, call: _Call, detail: tuple[Any, ...], output: torch.Tensor, source: torch.Tensor) -> None:
        check_tensor("output", output)
        check_tensor("input", source)
        to, of = output.data_ptr(), source.data_ptr()
        # A call on a tensor that an earlier call writes, or into one that it reads, is made after that call.
        later = to in self._written or to in self._read or of in self._written
        if not self._runs or later or self._runs[-1][:2] != (call, detail):
            self._runs.append((call, detail, [], []))
            self._written, self._read = set(), set()
        self._runs[-1][2].append(output)
        self._runs[-1][3].append(source)
        self._written.add(to)
        self._read.add(of)


@hints_timeout_s
def coalescing(group: Group | None = None, async_op: bool = False, *, timeout_s: float | None = None) -> Coalescing:
    """Collect calls, and make them together when the block ends.

        with unisono.coalescing() as calls:
            for tensor in tensors:
                calls.all_reduce(tensor, "avg")

    Consecutive calls that differ only in their tensors become one. Nothing moves before the block ends, or if it ends
    with an exception. With `async_op=True` the calls run in the background; `calls.wait()` waits for them.
    """
    return Coalescing(group_or_default(group), async_op, timeout_s)


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
            tensor.data = piece.view(tensor.shape)
        flats.append(flat)
    return flats
