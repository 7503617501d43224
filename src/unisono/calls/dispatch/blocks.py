"""Calls on blocks with sizes that may differ.

A rank whose blocks have one size makes the plain call. If the ranks disagree about sizes at the gate, before anything
moves, or a rank knows that its sizes differ, an all_gather tells all ranks all sizes: what each rank gives to and takes
from every other. Every rank raises the same error, or the call runs with a size for each block. The next calls of this
collective exchange sizes at once, until their blocks have had one size for a while.

The table is the same for all sizes: a row of a program names the block that it moves, and the plan has a size for each.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ...base.dtype_codes import NAMES
from ...base.errors import MismatchError
from ...base.records import only_sizes_differ
from ...engine.process.nested import caller
from ...engine.tensors import DTYPE_CODES, mark_written, needed_by_autograd
from ...ranks.group.group import Group
from ...schedule import ONE_IN, ONE_OUT, ROOTED
from ..arguments import blank
from .checking import checking
from .plan_cache import CallKey, UnevenCalls, ask_for_sizes
from .rank_order import plan_step
from .request import Request, Tensors, is_one
from .step import Action, CallOptions, PlainTensors


def sides(gives: Sequence[torch.Tensor | None], takes: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """This rank's row of the table, int64: the code of its dtype, then for each peer the elements given and taken."""
    dtype = next(tensor.dtype for tensor in (*gives, *takes) if tensor is not None)
    counts = [0 if tensor is None else tensor.numel() for pair in zip(gives, takes, strict=True) for tensor in pair]
    return torch.tensor([DTYPE_CODES[dtype], *counts], dtype=torch.int64, device="cpu")


class Sides:
    """The rows of all ranks, and conclusions from them. Every rank comes to the same conclusions."""

    def __init__(self, table: torch.Tensor, collective: str, root: int) -> None:
        self._collective, self._root, self._ranks = collective, root, len(table)
        self._dtypes: list[int] = table[:, 0].tolist()
        self._gives: list[list[int]] = table[:, 1::2].tolist()
        self._takes: list[list[int]] = table[:, 2::2].tolist()

    def extents(self) -> list[int]:
        """The elements of each block (all_to_all: of each pair of ranks), as in `Blocks.extents`."""
        ranks, gives = range(self._ranks), self._gives
        if self._collective == "all_to_all":
            return [gives[s][d] for s in ranks for d in ranks]
        if self._collective in ("scatter", "reduce_scatter"):
            return list(gives[self._root])
        return [gives[q][self._root] for q in ranks]

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
        """The pairs (giver, taker) with different sizes. A reduce_scatter needs equal sizes from all ranks."""
        ranks = range(self._ranks)
        return [(s, d) for s in ranks for d in ranks if self._takes[d][s] != self._gives[s][d]]


def plan_blocks(how: CallOptions, request: Request, known_as: CallKey | None) -> Action:
    """Plan a call on blocks. Its result is the output."""
    if how.async_op:  # the user's lists may change while the call waits
        request = request._replace(inp=_kept(request.inp), out=_kept(request.out))
    group, plain = how.group, None
    written = needed_by_autograd(request.written_on(group.rank))
    if _kind(request) not in UnevenCalls.of(group):
        if request.even:
            plain = plan_step(how, request, known_as)
        elif request.sizes is not None:
            plain = plan_step(how, _sized(request, group, _takes(request, group), request.sizes))

    def action(where: str | None) -> Any:
        if plain is not None:
            try:
                return plain(where)
            except MismatchError as error:
                if not only_sizes_differ(error.calls, group.size):
                    raise
        made = _settle(how, request, where)
        mark_written(written)  # plan_step has marked views of the blocks only
        return made

    return action


def _settle(how: CallOptions, request: Request, where: str | None) -> Any:
    """Exchange all sizes, and run the call with them. Raises MismatchError on every rank if they do not fit."""
    group, out = how.group, request.out
    with checking(group, request.collective) as steps:
        tensors = PlainTensors.of(request, group)
        request = request._replace(inp=tensors.inp, out=tensors.out)
        takes = _takes(request, group)
        mine = sides(_gives(request, group), takes)
        table = torch.empty(group.size, mine.numel(), dtype=torch.int64, device="cpu")
        ask = Request("all_gather", mine, mine, table, says=request.question)
        question = plan_step(how._replace(algorithm=None), ask)
        try:
            question(where)
        except MismatchError as error:  # the others have made the plain call; now they exchange sizes, too
            if not only_sizes_differ(error.calls, group.size):
                raise
            question(where)
        agreed = Sides(table, request.collective, request.root)
        if wrong := agreed.disagreement():
            UnevenCalls.of(group).pop(_kind(request), None)
            calls = {rank: request.question._replace(words=text) for rank, text in wrong.items()}
            calls[group.rank] = calls[group.rank]._replace(where=where or caller())
            raise MismatchError(group.host.call_number - 1, calls, agreed.odd(), group.named)
        _remember(group, request, len(set(agreed.extents())) == 1)
        move = plan_step(how, _sized(request, group, takes, agreed.extents()))
        tensors.take()
        steps.last = group.host.call_number
        move(where)
    tensors.give()
    return out


def _kind(request: Request) -> tuple[str, int]:
    """The key of `UnevenCalls`: collective and root."""
    return request.collective, request.root if request.collective in ROOTED else 0


def _remember(group: Group, request: Request, even: bool) -> None:
    """Decide, equally on all ranks, whether the next call exchanges sizes at once."""
    kind, uneven = _kind(request), UnevenCalls.of(group)
    if not even:
        ask_for_sizes(group, *kind)
    elif kind in uneven:
        uneven[kind] -= 1
        if not uneven[kind]:
            del uneven[kind]


def _gives(request: Request, group: Group) -> list[torch.Tensor | None]:
    """The block that this rank gives to each rank; None: it gives no block."""
    inp = request.inp
    if inp is None:
        return [None] * group.size
    if request.collective in ONE_IN and is_one(inp):
        return [inp if request.collective != "gather" or rank == request.root else None for rank in range(group.size)]
    return _cut(inp, group.size)


def _takes(request: Request, group: Group) -> list[torch.Tensor | None]:
    """The tensor for the block that each rank gives to this one; None: no block."""
    out = request.out
    if out is None:
        return [None] * group.size
    if request.collective in ONE_OUT and is_one(out):
        return [out if request.collective != "scatter" or rank == request.root else None for rank in range(group.size)]
    return _cut(out, group.size)


def _cut(tensors: torch.Tensor | Sequence[torch.Tensor], size: int) -> list[torch.Tensor | None]:
    """The blocks: the tensors of a list, or views of one tensor."""
    return [*tensors.view(size, -1)] if is_one(tensors) else [*tensors]


def _kept(tensors: Tensors) -> Tensors:
    return tensors if tensors is None or is_one(tensors) else list(tensors)


def _sized(
    request: Request,
    group: Group,
    takes: Sequence[torch.Tensor | None],
    extents: Sequence[int],
) -> Request:
    given = [tensor for tensor in _gives(request, group) if tensor is not None]
    taken = [tensor for tensor in takes if tensor is not None]
    return request._replace(
        like=blank(max(extents, default=0), (given or taken)[0].dtype),
        inp=given[0] if request.collective in ONE_IN else given or None,
        out=taken[0] if request.collective in ONE_OUT else taken or None,
        even=True,
        extents=tuple(extents) if len(set(extents)) > 1 else None,
    )
