"""`plan_step`: plan one run of a table; and calls that combine in rank order, on each rank that needs the values.

Such a call first moves all inputs to these ranks. Then each computes ((x0 op x1) op x2) ... . Calls over several hosts
need this if partial results of a host would be wrong: scan and exscan, ops that are not commutative or not associative,
and averages of integers.
"""

from collections.abc import Callable, Sequence

import torch

from ...base.errors import ArgumentError, InternalError
from ...engine.reducers import CustomOp, combiner
from ...engine.tensors import as_bits, dtype_name, make_plain, mark_written, needed_by_autograd
from ..ops import PremulSum
from .known import CallKey
from .request import Request, Tensors, is_one
from .step import Action, CallOptions, plan_inside

_SCANS = {"scan", "exscan"}


def plan_step(how: CallOptions, request: Request, known_as: CallKey | None = None) -> Action:
    """Plan one run of a table; the returned action runs it. known_as: keep the plan under this name for `shortcut`."""
    if how.group.span is not None:
        from .over_hosts.hosts_run import Relay  # 6 ms of a process's start, which groups on one host do not need

        Relay.serve(how.group, how.group.span)
        if _needs_rank_order(request):
            return _plan_in_rank_order(how, request)
    return plan_inside(how, request, known_as)


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


def _needs_rank_order(request: Request) -> bool:
    """Would partial results of each host be wrong for this call over hosts?"""
    op, dtype = request.op, request.like.dtype
    if isinstance(op, CustomOp):
        return request.collective in _SCANS or not (op.commutative and op.associative)
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return request.collective in _SCANS or (op == "avg" and whole)


def _plan_in_rank_order(how: CallOptions, request: Request) -> Action:
    """Plan a call that moves all inputs to the ranks that need them, and combines them there in rank order."""
    group, like, kind = how.group, request.like, request.collective
    if how.algorithm is not None:
        raise ArgumentError(f"algorithm: {request.record} combines in rank order on each rank; leave algorithm= out")
    shape, extents = like.shape, None
    if kind == "reduce_scatter" and request.extents is not None:
        shape, extents = torch.Size((request.extents[group.rank],)), request.extents * group.size
    collective = {"reduce": "gather", "reduce_scatter": "all_to_all"}.get(kind, "all_gather")
    parts: torch.Tensor | None = None
    if collective != "gather" or group.rank == request.root:
        parts = torch.empty((group.size, *shape), dtype=like.dtype, device="cpu")
    taken: Tensors = parts if extents is None or parts is None else list(parts)
    says = request.record._replace(words="in rank order")
    moved = Request(collective, like, request.inp, taken, root=request.root, extents=extents, says=says)
    move = plan_step(how, moved)
    ranks = group.rank + (kind == "scan") if kind in _SCANS else group.size
    combine = _combine(request, group.size)
    written = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Tensors:
        move(where)
        out = request.out
        if parts is not None and ranks and out is not None and is_one(out):
            combine(out, list(parts[:ranks]))
            mark_written(written)
        return out

    return action


def _combine(request: Request, size: int) -> Callable[[torch.Tensor, Sequence[torch.Tensor]], None]:
    """A function (out, parts) that combines the parts from left to right. size: the size of the group."""
    op = request.op
    if not isinstance(op, str | CustomOp):
        raise InternalError(f"{request.record}: op {op!r} has no kernel")
    kernel = combiner(dtype_name(request.like.dtype), op, size, last=request.collective not in _SCANS)

    def elements(out: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
        made = make_plain(out)
        total = made if made is out else torch.empty_like(made)
        kernel(total.data, parts)
        if total is not out:
            as_bits(out.data).copy_(as_bits(total))

    return elements
