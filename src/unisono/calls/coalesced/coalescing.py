"""`coalescing`: collect calls, then make them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...base.units import hints_timeout_s
from ...ranks.group.group import Group
from ...ranks.group.initialize import group_or_default
from ..arguments import check_tensor
from ..dispatch import refuse
from ..ops import OpLike, ReduceOp, resolve
from ..work import Work
from .coalesced_calls import all_gather_coalesced, all_reduce_coalesced, broadcast_coalesced, reduce_scatter_coalesced

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
        """Replace `tensor` by that of rank `src`."""
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
