"""Lists of blocks whose sizes a rank knows only in part: `all_to_all`, `gather` and `scatter`.

Each such call begins with an all_gather of all sizes: the elements that each rank gives to and takes from every other
rank. Then every rank raises the same error, or the call runs with a size for each block.

The table of a call is the same for all sizes: a row of a program names the block that it moves, and the plan has a size
for each.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ...base.dtype_codes import NAMES
from ...base.errors import MismatchError
from ...base.records import CallRecord
from ...base.units import seconds
from ...engine.process.nested import caller
from ...engine.tensors import DTYPE_CODES, mark_written, needed_by_autograd
from ...ranks.group.group import Group
from ..arguments import blank
from .checking import checking
from .known import UNKNOWN, shortcut
from .make import Call, plan
from .request import Request, Tensors, is_one, unequal


def plan_blocks(call: Call, request: Request) -> None:
    """Plan a call on blocks whose sizes the ranks exchange first. Its result is the output."""
    group, algorithm = call.group, call.algorithm
    limit_s = None if call.timeout_s is None else seconds(call.timeout_s)
    # The user's lists may change while the call waits.
    inp, out = (tensors if is_one(tensors) or tensors is None else list(tensors) for tensors in request[2:4])
    request, root = request._replace(inp=inp, out=out), request.root
    gives, takes = _per_rank(inp, group, root), _per_rank(out, group, root)
    counts = [tensor.numel() if tensor is not None else 0 for pair in zip(gives, takes, strict=True) for tensor in pair]
    mine = torch.tensor([DTYPE_CODES[request.like.dtype], *counts], dtype=torch.int64, device="cpu")
    written = needed_by_autograd(request.written_on(group.rank))

    def action(where: str | None) -> Any:
        with checking(group, request.collective) as steps:
            extents = _exchange(group, request, mine, limit_s, where)
            like = blank(max(extents), request.like.dtype) if unequal(extents) else request.like
            move = plan(group, request._replace(like=like, extents=unequal(extents)), algorithm, limit_s)
            steps.last = group.engine.call_number
            made = move(where)
        mark_written(written)
        return made

    call.record, call.action = _record(request), action


def _exchange(
    group: Group, request: Request, mine: torch.Tensor, limit_s: float | None, where: str | None
) -> list[int]:
    """Gather all ranks' sizes; return those of `Blocks.extents`. Raises MismatchError on every rank if they differ."""
    kind, root, says, ranks = request.collective, request.root, _record(request), range(group.size)
    table = torch.empty(group.size, len(mine), dtype=torch.int64, device="cpu")
    what = f"sizes of {kind}", None, root, None
    if shortcut(group, what, mine, table, limit_s) is UNKNOWN:
        plan(group, Request("all_gather", mine, mine, table, says=says), None, limit_s, what)(where)
    dtypes, gives, takes = table[:, 0].tolist(), table[:, 1::2].tolist(), table[:, 2::2].tolist()
    wrong = [(s, d) for s in ranks for d in ranks if takes[d][s] != gives[s][d]]
    unlike = {rank for rank in ranks if dtypes[rank] != dtypes[0]}
    if wrong or unlike:
        calls = {}
        for rank in ranks:
            told = [NAMES[dtypes[rank]]] if unlike else []
            told += [f"gives rank {d} {gives[s][d]} elements" for s, d in wrong if s == rank]
            told += [f"expects {takes[d][s]} elements from rank {s}" for s, d in wrong if d == rank]
            calls[rank] = says._replace(words="; ".join(told) or "fits")
        calls[group.rank] = calls[group.rank]._replace(where=where or caller())
        odd = sorted(unlike or {s for s, _ in wrong})  # ranks with another dtype, or the givers
        raise MismatchError(group.engine.call_number - 1, calls, odd, group.named)
    if kind == "all_to_all":
        return [gives[s][d] for s in ranks for d in ranks]
    return [gives[root][rank] if kind == "scatter" else gives[rank][root] for rank in ranks]


def _record(request: Request) -> CallRecord:
    """The record of the step that exchanges sizes."""
    return CallRecord(request.collective, counts=None, root=request.root)


def _per_rank(tensors: Tensors, group: Group, root: int) -> Sequence[torch.Tensor | None]:
    """The block that this rank gives to each rank, or takes from each rank; None: no block."""
    if tensors is None or is_one(tensors):
        return [tensors if rank == root else None for rank in range(group.size)]
    return list(tensors)
