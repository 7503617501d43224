"""Calls over several hosts whose values must be combined in rank order, or in one pass, on the ranks that need them.

scan and exscan; ops that are not commutative or not associative; averages of integers, whose partial results are not
rounded. All inputs are moved to the ranks that need them, and combined there: ((x0 op x1) op x2) ..., in rank order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....base.errors import ArgumentError, InternalError
from ....engine.reducers import CustomOp
from ....engine.tensors.combining import combiner
from ....engine.tensors.plain import as_bits, dtype_name, make_plain
from ....engine.tensors.written import mark_written, needed_by_autograd
from ..request import Request, Tensors, is_one
from ..step import Action, CallOptions

_SCANS = {"scan", "exscan"}


def needs_rank_order(request: Request) -> bool:
    """Can this call not be made by partial results of each host?"""
    op, dtype = request.op, request.like.dtype
    if isinstance(op, CustomOp):
        return request.collective in _SCANS or not (op.commutative and op.associative)
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return request.collective in _SCANS or (op == "avg" and whole)


def plan_in_rank_order(how: CallOptions, request: Request, plan: Callable[[CallOptions, Request], Action]) -> Action:
    """Plan such a call. plan: plans the call that moves the inputs."""
    group, like, kind, op = how.group, request.like, request.collective, request.op
    if how.algorithm is not None:
        raise ArgumentError(f"algorithm: {request.record} combines in rank order on each rank; leave algorithm= out")
    if not isinstance(op, str | CustomOp):
        raise InternalError(f"{request.record}: op {op!r} has no kernel")
    collective = {"reduce": "gather", "reduce_scatter": "all_to_all"}.get(kind, "all_gather")
    gets = collective != "gather" or group.rank == request.root
    count = like.numel()
    extents: tuple[int, ...] | None = None
    if kind == "reduce_scatter" and request.extents is not None:
        count = request.extents[group.rank]
        extents = request.extents * group.size
    parts = torch.empty((group.size, count), dtype=like.dtype, device="cpu") if gets else None
    taken: Tensors = parts if extents is None or parts is None else list(parts)
    says = request.record._replace(words="in rank order")
    moved = Request(collective, like, request.inp, taken, root=request.root, extents=extents, says=says)
    move = plan(how, moved)
    ranks = group.rank + (kind == "scan") if kind in _SCANS else group.size
    combine = combiner(dtype_name(like.dtype), op, group.size, last=kind not in _SCANS)
    written = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        move(where)
        out = request.out
        if parts is not None and ranks and out is not None and is_one(out):
            made = make_plain(out)
            total = made if made is out else torch.empty_like(made)
            combine(total.data, list(parts[:ranks]))
            if total is not out:
                as_bits(out.data).copy_(as_bits(total))
            mark_written(written)
        return out

    return action
