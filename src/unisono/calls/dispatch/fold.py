"""Ops without a kernel: premultiplied sums, and functions of whole tensors, which are applied to gathered tensors."""

from __future__ import annotations

from typing import Any

import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.reducers import CustomOp
from ...engine.tensors.plain import as_bits
from ...engine.tensors.written import mark_written, needed_by_autograd
from ..arguments import shape_name
from ..ops import PremulSum
from .request import Request, Tensors, is_one
from .routing import plan_step
from .step import Action, CallOptions


def whole_tensors(op: object) -> bool:
    """Is this op a Python function of whole tensors?"""
    return isinstance(op, CustomOp) and not op.elementwise


def premultiplied(request: Request, rank: int) -> Request:
    """If the op is a premultiplied sum: the request for the sum of this rank's input times its factor."""
    op, inp = request.op, request.inp
    if not isinstance(op, PremulSum):
        return request
    scaled: Tensors = None
    if inp is not None:
        scaled = inp.detach() * op.factor if is_one(inp) else [tensor.detach() * op.factor for tensor in inp]
    out = None if request.collective == "reduce" and rank != request.root else request.out
    return request._replace(inp=scaled, out=out, op="sum", in_place=False, words="premultiplied")


def plan_fold(how: CallOptions, request: Request) -> Action:
    """Move all inputs to the ranks that need them, and combine them there: ((x0 op x1) op x2) ..., in rank order."""
    op, like, out, group = request.op, request.like, request.out, how.group
    if how.algorithm is not None:
        raise ArgumentError(
            f"algorithm: {request.record} combines whole tensors in rank order on each rank; leave algorithm= out, or "
            "make the op with elementwise=True"
        )
    if not request.alike:
        raise ArgumentError(f"{request.record}: this op combines whole tensors, so all blocks must be of one size")
    collective = {"reduce": "gather", "reduce_scatter": "all_to_all"}.get(request.collective, "all_gather")
    parts: torch.Tensor | None = None
    if collective != "gather" or group.rank == request.root:
        parts = torch.empty((group.size, *like.shape), dtype=like.dtype, device="cpu")
    move = plan_step(how, Request(collective, like, request.inp, parts, root=request.root, says=request.record))
    count = group.size
    if request.collective in ("scan", "exscan"):
        count = group.rank + (request.collective == "scan")

    written = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        move(where)
        if parts is not None and count and isinstance(out, torch.Tensor) and isinstance(op, CustomOp):
            total = parts[0]
            for part in parts[1:count]:
                total = op.function(total, part)
                _check_result(request, op, total)
            as_bits(out.data).copy_(as_bits(total))
            mark_written(written)
        return out

    return action


def _check_result(request: Request, op: CustomOp, result: Any) -> None:
    like = request.like
    if not isinstance(result, torch.Tensor) or result.shape != like.shape or result.dtype != like.dtype:
        got = shape_name(result) if isinstance(result, torch.Tensor) else type(result).__name__
        raise DTypeError(
            f"{request.record}: op {op.name!r} returned {got}; it must return a tensor like {shape_name(like)}"
        )
