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
from .rank_order import plan_step
from .request import Request, Tensors, is_one, unequal
from .step import Action, CallOptions


class Sizes:
    """The elements that each rank gives to and takes from every other. Every rank comes to the same conclusions.

    table: a row for each rank, int64: the code of its dtype, then for each peer the elements given and taken.
    """

    def __init__(self, table: torch.Tensor, collective: str, root: int) -> None:
        self._collective, self._root, self._ranks = collective, root, len(table)
        self._dtypes: list[int] = table[:, 0].tolist()
        self._gives: list[list[int]] = table[:, 1::2].tolist()
        self._takes: list[list[int]] = table[:, 2::2].tolist()

    def of_blocks(self) -> list[int]:
        """The elements of each block (all_to_all: of each pair of ranks), as in `Blocks.extents`."""
        ranks, gives = range(self._ranks), self._gives
        if self._collective == "all_to_all":
            return [gives[s][d] for s in ranks for d in ranks]
        return list(gives[self._root]) if self._collective == "scatter" else [gives[q][self._root] for q in ranks]

    def disagreement(self) -> dict[int, str]:
        """If sizes or dtypes do not fit: each rank's side as text. Empty if they fit."""
        wrong = self._pairs()
        alike = len(set(self._dtypes)) == 1
        if not wrong and alike:
            return {}
        said = {}
        for rank in range(self._ranks):
            parts = [] if alike else [NAMES[self._dtypes[rank]]]
            for s, d in wrong:
                if rank == s:
                    parts.append(f"gives rank {d} {self._gives[s][d]} elements")
                if rank == d:
                    parts.append(f"expects {self._takes[d][s]} elements from rank {s}")
            said[rank] = "; ".join(parts) or "fits"
        return said

    def odd(self) -> list[int]:
        """The ranks to blame: ranks with another dtype than the first rank, otherwise the givers of wrong pairs."""
        unlike = {rank for rank, code in enumerate(self._dtypes) if code != self._dtypes[0]}
        return sorted(unlike or {s for s, _ in self._pairs()})

    def _pairs(self) -> list[tuple[int, int]]:
        """The pairs (giver, taker) with different sizes."""
        ranks = range(self._ranks)
        return [(s, d) for s in ranks for d in ranks if self._takes[d][s] != self._gives[s][d]]


def plan_blocks(how: CallOptions, request: Request) -> Action:
    """Plan a call on blocks whose sizes the ranks exchange first. Its result is the output."""
    how = how._replace(timeout_s=None if how.timeout_s is None else seconds(how.timeout_s))
    # The user's lists may change while the call waits.
    inp, out = (tensors if is_one(tensors) or tensors is None else list(tensors) for tensors in request[2:4])
    request, rank, root = request._replace(inp=inp, out=out), how.group.rank, request.root
    gives, takes = _per_rank(inp, how.group, root), _per_rank(out, how.group, root)
    counts = [tensor.numel() if tensor is not None else 0 for pair in zip(gives, takes, strict=True) for tensor in pair]
    mine = torch.tensor([DTYPE_CODES[request.like.dtype], *counts], dtype=torch.int64, device="cpu")
    written = needed_by_autograd(request.written_on(rank))

    def action(where: str | None) -> Any:
        group = how.group
        with checking(group, request.collective) as steps:
            sizes = _exchange(how, request, mine, where)
            extents = sizes.of_blocks()
            like = blank(max(extents), request.like.dtype) if unequal(extents) else request.like
            move = plan_step(how, request._replace(like=like, extents=unequal(extents)))
            steps.last = group.host.call_number
            made = move(where)
        mark_written(written)
        return made

    return action


def _exchange(how: CallOptions, request: Request, mine: torch.Tensor, where: str | None) -> Sizes:
    """Gather all ranks' sizes. Raises MismatchError on every rank if they do not fit."""
    group, kind, root = how.group, request.collective, request.root
    table, says = torch.empty(group.size, len(mine), dtype=torch.int64, device="cpu"), exchange_record(request)
    what = f"sizes of {kind}", None, root, None
    if shortcut(group, what, mine, table, how.timeout_s) is UNKNOWN:
        ask = Request("all_gather", mine, mine, table, says=says)
        plan_step(how._replace(algorithm=None), ask, what)(where)
    sizes = Sizes(table, kind, root)
    if wrong := sizes.disagreement():
        calls = {rank: says._replace(words=text) for rank, text in wrong.items()}
        calls[group.rank] = calls[group.rank]._replace(where=where or caller())
        raise MismatchError(group.host.call_number - 1, calls, sizes.odd(), group.named)
    return sizes


def exchange_record(request: Request) -> CallRecord:
    """The record of the step that exchanges sizes."""
    return CallRecord(request.collective, counts=None, root=request.root)


def _per_rank(tensors: Tensors, group: Group, root: int) -> Sequence[torch.Tensor | None]:
    """The block that this rank gives to each rank, or takes from each rank; None: no block."""
    if tensors is None or is_one(tensors):
        return [tensors if rank == root else None for rank in range(group.size)]
    return list(tensors)
