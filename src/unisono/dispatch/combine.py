"""Ops that no kernel knows, made of calls that move: a factor before the sum, and functions of whole tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..arguments import shape_name
from ..engine.written import mark_written, needed_by_autograd
from ..errors import ArgumentError, DTypeError
from ..membership.group import Group
from ..ops import CustomOp, PremulSum
from ..work import Work
from .contiguous import bits
from .entering import entering
from .perform import Action, perform, prepare, start
from .request import Request, Tensors

__all__ = ["combine", "premultiplied", "whole_tensors"]


def whole_tensors(op: object) -> bool:
    """Is this op a Python function of whole tensors?"""
    return isinstance(op, CustomOp) and not op.elementwise


def combine(
    group: Group,
    request: Request,
    async_op: bool,
    algorithm: Any,
    timeout_s: float | None,
    known_as: tuple[object, ...] = (),
) -> Work | None:
    """`perform` for a request with any op."""
    if isinstance(request.op, str) or (isinstance(request.op, CustomOp) and request.op.elementwise):
        return perform(group, request, async_op, algorithm, timeout_s, known_as)
    with entering(group, request.collective):
        if whole_tensors(request.op):
            action = _fold(group, request, algorithm, timeout_s)
        else:
            op, inp = premultiplied(request.op, request.inp)
            out = None if request.collective == "reduce" and group.rank != request.root else request.out
            scaled = replace(request, inp=inp, out=out, op=op, in_place=False, words="premultiplied")
            action = prepare(group, scaled, algorithm, timeout_s)
    work = start(group, lambda: request.text, action, async_op)
    return work if async_op else None


def premultiplied(op: Any, tensors: Tensors) -> tuple[Any, Tensors]:
    """The op and the inputs for the kernel: a sum of the inputs times this rank's factor, where that was asked for."""
    if not isinstance(op, PremulSum) or tensors is None:
        return op, tensors
    if isinstance(tensors, torch.Tensor):
        return "sum", tensors.detach() * op.factor
    return "sum", [tensor.detach() * op.factor for tensor in tensors]


def _fold(group: Group, request: Request, algorithm: Any, timeout_s: float | None) -> Action:
    """Bring all inputs to whoever needs them, and combine them there: ((x0 op x1) op x2) ..., in rank order."""
    op, like, out = request.op, request.like, request.out
    if algorithm is not None:
        raise ArgumentError(
            f"algorithm: {request.text} combines whole tensors in rank order on each rank; leave algorithm= out, or "
            "make the op with elementwise=True"
        )
    collective = {"reduce": "gather", "reduce_scatter": "all_to_all"}.get(request.collective, "all_gather")
    parts: torch.Tensor | None = None
    if collective != "gather" or group.rank == request.root:
        parts = torch.empty((group.size, *like.shape), dtype=like.dtype, device="cpu")
    move = Request(collective, like, request.inp, parts, root=request.root, says=request.text)
    inner = prepare(group, move, None, timeout_s)
    count = group.size
    if request.collective in ("scan", "exscan"):
        count = group.rank + (request.collective == "scan")

    marked = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        inner(where)
        if parts is not None and count and isinstance(out, torch.Tensor) and isinstance(op, CustomOp):
            total = parts[0]
            for part in parts[1:count]:
                total = op.function(total, part)
                _check_result(request, op, total)
            bits(out.data).copy_(bits(total))
            mark_written(marked)
        return out

    return action


def _check_result(request: Request, op: CustomOp, result: Any) -> None:
    like = request.like
    if not isinstance(result, torch.Tensor) or result.shape != like.shape or result.dtype != like.dtype:
        got = shape_name(result) if isinstance(result, torch.Tensor) else type(result).__name__
        raise DTypeError(
            f"{request.text}: op {op.name!r} returned {got}; it must return a tensor like {shape_name(like)}"
        )
