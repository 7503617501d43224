"""Calls over several hosts that combine in rank order, on each rank that needs the values.

Such a call first moves all inputs to these ranks. Then each computes ((x0 op x1) op x2) ... . This is for calls in
which partial results of a host would be wrong: scan and exscan, ops that are not commutative or not associative, and
averages of integers.
"""

from collections.abc import Callable
from typing import Any

import torch

from ....base.errors import ArgumentError, InternalError
from ....engine.reducers import CustomOp, combiner
from ....engine.tensors import as_bits, dtype_name, make_plain, mark_written, needed_by_autograd
from ..request import Request, Tensors, is_one

_SCANS = {"scan", "exscan"}


def in_rank_order(
    request: Request, rank: int, size: int, algorithm: Any
) -> tuple[Request, Callable[[], object] | None]:
    """The request that moves the inputs to the ranks that need them, and what combines them there after it.

    The request as it is, and None, if its table may combine.
    """
    like, kind, op = request.like, request.collective, request.op
    whole = not (like.dtype.is_floating_point or like.dtype.is_complex)
    free = op.commutative and op.associative if isinstance(op, CustomOp) else not (op == "avg" and whole)
    if kind not in _SCANS and free:
        return request, None
    if algorithm is not None:
        raise ArgumentError(
            f"algorithm: {request.record} combines in rank order on each rank, so it takes no algorithm. Leave out "
            "algorithm=."
        )
    if not isinstance(op, str | CustomOp):
        raise InternalError(f"{request.record}: op {op!r} has no kernel")
    shape, counts = like.shape, None
    if kind == "reduce_scatter" and request.counts is not None:
        shape, counts = torch.Size((request.counts[rank],)), request.counts * size
    collective = {"reduce": "gather", "reduce_scatter": "all_to_all"}.get(kind, "all_gather")
    parts: torch.Tensor | None = None
    if collective != "gather" or rank == request.root:
        parts = torch.empty((size, *shape), dtype=like.dtype, device="cpu")
    taken: Tensors = parts if counts is None or parts is None else list(parts)
    says = request.record._replace(words="in rank order")
    moved = Request(collective, like, request.inp, taken, root=request.root, counts=counts, says=says)
    ranks = rank + (kind == "scan") if kind in _SCANS else size
    kernel = combiner(dtype_name(like.dtype), op, size, last=kind not in _SCANS)
    out, written = request.out, needed_by_autograd(request.written_on(rank))

    def combine() -> None:
        if parts is not None and ranks and is_one(out):
            made = make_plain(out)
            total = made if made is out else torch.empty_like(made)
            kernel(total.data, list(parts[:ranks]))
            if total is not out:
                as_bits(out.data).copy_(as_bits(total))
            mark_written(written)

    return moved, combine
