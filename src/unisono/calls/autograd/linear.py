"""One autograd function for all linear collectives.

A collective that adds or moves is a linear function of all ranks' tensors. Its backward is the transposed collective,
see `schedule.DUALS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ...base.errors import MismatchError
from ...base.records import CallRecord
from ...engine.process.nested import caller
from ...ranks.group.group import Group
from ...schedule import DUALS
from ..collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce, reduce_scatter, scatter
from ..dispatch import Call, Request


def join(tensor: torch.Tensor, *results: torch.Tensor) -> torch.Tensor:
    """Return the tensor's value as a new tensor. Its backward also runs through the results, with zero gradients.

    Use it on ranks that make a call but do not use its result: `loss = join(loss, result)`.
    """
    for result in results:
        zeros: torch.Tensor = _Zeros.apply(result, tensor)  # type: ignore[no-untyped-call]
        tensor = tensor + zeros
    return tensor


class _Zeros(torch.autograd.Function):
    """Zeros like the second tensor, which autograd records as computed from the first."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(source)
        return torch.zeros_like(like)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        (source,) = ctx.saved_tensors
        return _Zeros.apply(source, source), None  # type: ignore[no-untyped-call]


Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class LinearCall:
    """A collective on the tensors of one rank.

    op: sum or avg.
    splits: the lengths of output and input blocks, for all_to_all_single.
    number: identifies the call on all ranks when they run its backward.
    """

    group: Group
    collective: str
    op: str = "sum"
    root: int = 0
    splits: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None)
    number: int = 0


def apply(call: LinearCall, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """Make the call. Its results require gradients on all ranks if the input of any rank does."""
    anchor = None
    if torch.is_grad_enabled():
        # The ranks' counts of calls may differ while some run in the background: the largest identifies the call.
        requires = any(tensor.requires_grad for tensor in tensors)
        answers = _exchange(call, CallRecord(f"autograd.{call.collective}"), 2 * call.group.host.call_number + requires)
        call = replace(call, number=max(answers) // 2)
        if any(answer % 2 for answer in answers):
            anchor = torch.empty(0, requires_grad=True, device="cpu")
    results: tuple[torch.Tensor, ...] = _Linear.apply(call, anchor, *tensors)  # type: ignore[no-untyped-call]
    return results


class _Linear(torch.autograd.Function):
    """_anchor: requires a gradient, so that the results do even if no tensor of this rank does."""

    @staticmethod
    def forward(
        ctx: Any, call: LinearCall, _anchor: torch.Tensor | None, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.call, ctx.shapes = call, [tensor.shape for tensor in tensors]
        return tuple(_FORWARD[call.collective](call, tensors))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call: LinearCall = ctx.call
        _check_together(call)
        if call.op == "avg":
            grads = tuple(grad / call.group.size for grad in grads)
        base = call.collective.removesuffix("_single")
        dual = DUALS.get(base, base) + call.collective[len(base) :]
        transpose = replace(call, collective=dual, op="sum", splits=call.splits[::-1])
        found = apply(transpose, grads)
        # A rank that passed no tensors to a scatter gets no gradients.
        return (None, None, *[grad.reshape(shape) for grad, shape in zip(found, ctx.shapes, strict=False)])


def _exchange(call: LinearCall, what: CallRecord, number: int) -> list[int]:
    """The numbers of all ranks, in rank order."""
    if call.group.size == 1:
        return [number]
    mine, table = torch.tensor([number], device="cpu"), torch.empty(call.group.size, dtype=torch.int64, device="cpu")
    with Call("all_gather", call.group) as asked:
        asked.plan(Request("all_gather", mine, mine, table, says=what))
    asked.run()
    numbers: list[int] = table.tolist()
    return numbers


def _check_together(call: LinearCall) -> None:
    """Raise MismatchError on every rank unless all ranks run the backward of the same call."""
    group, what = call.group, CallRecord(f"backward of autograd.{call.collective}")
    at = group.host.call_number
    numbers = _exchange(call, what, call.number)
    if len(set(numbers)) > 1:
        calls = {rank: what._replace(words=f"made as call #{number}") for rank, number in enumerate(numbers)}
        calls[group.rank] = calls[group.rank]._replace(where=caller())
        raise MismatchError(at, calls, [rank for rank, number in enumerate(numbers) if number != numbers[0]])


def _in_place(make: Callable[[torch.Tensor, LinearCall], object], call: LinearCall, tensors: Tensors) -> Tensors:
    result = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device="cpu").copy_(tensors[0])
    make(result, call)
    return [result]


def _reduce(result: torch.Tensor, call: LinearCall) -> None:
    reduce.reduce(result, call.root, call.op, call.group)
    if call.group.rank != call.root:
        result.zero_()


def _scatter(call: LinearCall, tensors: Tensors) -> Tensors:
    # As the backward of gather it gets empty tensors on the other ranks, which keep autograd's graph connected.
    blocks = tensors if call.group.rank == call.root else None
    return [scatter.scatter(None, blocks, call.root, call.group)]


def _gather(call: LinearCall, tensors: Tensors) -> Tensors:
    results: Tensors | None = gather.gather(tensors[0], None, call.root, call.group)
    return results or [tensors[0].new_empty(0) for _ in range(call.group.size)]


def _all_gather_single(call: LinearCall, tensors: Tensors) -> Tensors:
    rows, *columns = tensors[0].shape or (1,)
    result = torch.empty((call.group.size * rows, *columns), dtype=tensors[0].dtype, device="cpu")
    all_gather.all_gather_single(result, tensors[0], call.group)
    return [result]


def _reduce_scatter_single(call: LinearCall, tensors: Tensors) -> Tensors:
    rows, *columns = tensors[0].shape
    result = torch.empty((rows // call.group.size, *columns), dtype=tensors[0].dtype, device="cpu")
    reduce_scatter.reduce_scatter_single(result, tensors[0], call.op, call.group)
    return [result]


def _all_to_all_single(call: LinearCall, tensors: Tensors) -> Tensors:
    outputs, inputs = call.splits
    rows, *columns = tensors[0].shape
    result = torch.empty((sum(outputs) if outputs else rows, *columns), dtype=tensors[0].dtype, device="cpu")
    all_to_all.all_to_all_single(result, tensors[0], outputs, inputs, call.group)
    return [result]


_FORWARD: dict[str, Callable[[LinearCall, Tensors], Tensors]] = {
    "all_gather": lambda call, tensors: all_gather.all_gather(None, tensors[0], call.group),
    "all_gather_single": _all_gather_single,
    "all_reduce": partial(_in_place, lambda result, call: all_reduce.all_reduce(result, call.op, call.group)),
    "all_to_all": lambda call, tensors: all_to_all.all_to_all(None, tensors, call.group),
    "all_to_all_single": _all_to_all_single,
    "broadcast": partial(_in_place, lambda result, call: broadcast.broadcast(result, call.root, call.group)),
    "gather": _gather,
    "reduce": partial(_in_place, _reduce),
    "reduce_scatter": lambda call, blocks: [reduce_scatter.reduce_scatter(None, blocks, call.op, call.group)],
    "reduce_scatter_single": _reduce_scatter_single,
    "scatter": _scatter,
}
