"""Calls on blocks whose sizes a rank knows only in part: `all_to_all`, `gather` and `scatter`.

Each begins with an all_gather of all sizes: the elements that each rank gives to and takes from every other rank. Then
every rank raises the same error, or the call runs with a size for each block. `all_gather` gathers shapes like this.

The table of a call is the same for all sizes: a row of a program names the block that it moves, and the plan has a size
for each.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...base.dtype_codes import NAMES
from ...base.errors import MismatchError
from ...base.records import CallRecord
from ...base.units import seconds
from ...engine.process.nested import caller
from ...engine.tensors import DTYPE_CODES, mark_written, needed_by_autograd
from ...ranks.group.group import Group
from .checking import checking
from .known import UNKNOWN, shortcut
from .make import Call, plan
from .request import Request, Tensors, is_one

Rows = Sequence[Sequence[int]]
"""The integers of each rank."""


def plan_after(
    call: Call, request: Request, row: Sequence[int], says: CallRecord, then: Callable[[Rows, str | None], Request]
) -> None:
    """Plan a call of two steps: the ranks gather their rows of integers, then make the request that follows from these.

    request: as the second step would be if all blocks had one size. says: the record of the first step. then: takes the
    rows and the user's line, if it is known.
    """
    group, limit_s = call.group, None if call.timeout_s is None else seconds(call.timeout_s)
    if call.algorithm is not None:
        plan(group, request, call.algorithm)  # refuses a wrong one before the first step
    written = needed_by_autograd(request.written_on(group.rank))
    mine, what = torch.tensor(row, dtype=torch.int64, device="cpu"), (f"sizes of {says.collective}", says, 0, None)

    def action(where: str | None) -> Any:
        with checking(group, says.collective) as steps:
            table = torch.empty(group.size, len(mine), dtype=torch.int64, device="cpu")
            if shortcut(group, what, mine, table, limit_s, where=where) is UNKNOWN:
                plan(group, Request("all_gather", mine, mine, table, says=says), None, limit_s, what)(where)
            move = plan(group, then(table.tolist(), where), call.algorithm, limit_s)
            steps.last = group.engine.call_number
            made = move(where)
        mark_written(written)
        return made

    call.record, call.action = says, action


def plan_blocks(call: Call, request: Request) -> None:
    """Plan a call on blocks whose sizes the ranks exchange first. Its result is the output."""
    group = call.group
    # The user's lists may change while the call waits.
    inp, out = (tensors if is_one(tensors) or tensors is None else list(tensors) for tensors in request[2:4])
    request = request._replace(inp=inp, out=out)
    pairs = zip(_per_rank(inp, group, request.root), _per_rank(out, group, request.root), strict=True)
    counts = [0 if tensor is None else tensor.numel() for pair in pairs for tensor in pair]
    says = CallRecord(request.collective, counts=None, root=request.root)

    def sized(rows: Rows, where: str | None) -> Request:
        return request.sized(_agreed(group, says, rows, where))

    plan_after(call, request, [DTYPE_CODES[request.like.dtype], *counts], says, sized)


def _agreed(group: Group, says: CallRecord, rows: Rows, where: str | None) -> list[int]:
    """The sizes of `Blocks.counts`. Raises MismatchError, on every rank, if what ranks give and expect differs."""
    ranks, dtypes = range(group.size), [row[0] for row in rows]
    gives, takes = [row[1::2] for row in rows], [row[2::2] for row in rows]
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
    if says.collective == "all_to_all":
        return [gives[s][d] for s in ranks for d in ranks]
    return [gives[says.root][rank] if says.collective == "scatter" else gives[rank][says.root] for rank in ranks]


def _per_rank(tensors: Tensors, group: Group, root: int) -> Sequence[torch.Tensor | None]:
    """The block that this rank gives to each rank, or takes from each rank; None: no block."""
    if tensors is None or is_one(tensors):
        return [tensors if rank == root else None for rank in range(group.size)]
    return list(tensors)
