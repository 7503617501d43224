"""Calls whose blocks may differ in size, and whose sizes a rank may not know.

A rank that has blocks of one size makes the plain call. If the ranks then disagree (nobody has moved anything), or a
rank knows that sizes differ or are missing, all tell each other what they give and take, in one small all_gather. Then
either every rank raises the same error, or the call runs with a size for each block. A collective that has needed this
asks for sizes at once from then on, until its blocks have been alike for a while.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..arguments import blank
from ..errors import MismatchError
from ..membership.group import Group
from ..ops import CustomOp, PremulSum
from ..schedule import ROOTED
from ..watch import caller
from .contiguous import contiguous
from .entering import entering
from .fast import forget
from .perform import prepare, start
from .request import Request, Tensors, call_words
from .sizes import Sides, sides

__all__ = ["Exchange", "exchange"]

_ALIKE_AGAIN = 16
"""How many calls with blocks of one size it takes until a collective asks for sizes no more."""


@dataclass(frozen=True)
class Exchange:
    """One rank's side of a call that moves blocks.

    inp, out: as the user passes them; out None where this rank gets something of unknown size: then the call makes the
    tensors. plain: the call for blocks of one size, if they are of one as far as this rank knows. sizes: the elements
    of each block, where every rank knows all of them by itself.
    """

    collective: str
    inp: Tensors
    out: Tensors
    plain: Request | None
    op: str | PremulSum | CustomOp | None = None
    root: int = 0
    sizes: Sequence[int] | None = None

    @property
    def kind(self) -> tuple[str, int]:
        """What is remembered of earlier calls like this one: collective and root."""
        return self.collective, self.root if self.collective in ROOTED else 0

    def gives(self, group: Group) -> list[torch.Tensor | None]:
        """What goes to each rank; None where nothing does."""
        if self.inp is None:
            return [None] * group.size
        if self.collective == "all_gather" and isinstance(self.inp, torch.Tensor):
            return [self.inp] * group.size
        if self.collective == "gather" and isinstance(self.inp, torch.Tensor):
            return [self.inp if rank == self.root else None for rank in range(group.size)]
        return list(_blocks(self.inp, group.size))

    def takes(self, group: Group) -> list[torch.Tensor | None] | None:
        """Where what each rank gives goes; None where nothing comes; None for all where that is not known."""
        if self.collective == "gather" and group.rank != self.root:
            return [None] * group.size
        if self.out is None:
            return None
        if self.collective == "reduce_scatter" and isinstance(self.out, torch.Tensor):
            return [self.out] * group.size
        if self.collective == "scatter" and isinstance(self.out, torch.Tensor):
            return [self.out if rank == self.root else None for rank in range(group.size)]
        return list(_blocks(self.out, group.size))


def _blocks(tensors: torch.Tensor | Sequence[torch.Tensor], size: int) -> Sequence[torch.Tensor]:
    """The blocks of a whole tensor, as views of it."""
    return list(tensors.view(size, -1)) if isinstance(tensors, torch.Tensor) else tensors


def exchange(
    group: Group,
    call: Exchange,
    async_op: bool,
    algorithm: Any,
    timeout_s: float | None,
    known_as: tuple[object, ...] = (),
    disagreed: MismatchError | None = None,
) -> Any:
    """Make the call: its result, or a Work with `async_op`. disagreed: how the plain call has ended already."""
    made_for = call.out
    if async_op:  # the user's lists may change while the call waits
        call = replace(call, inp=_kept(call.inp), out=_kept(call.out))
    with entering(group, call.collective):
        request = call.plain
        if request is None and call.sizes is not None:
            request = _request(call, group, call.takes(group), call.sizes)
        plain = None
        if request is not None and call.kind not in group.uneven and disagreed is None:
            plain = prepare(group, request, algorithm, timeout_s, known_as if request is call.plain else ())

    def action(where: str | None) -> Any:
        if plain is not None:
            try:
                return plain(where)
            except MismatchError as error:
                if not _about_sizes(error, group):
                    raise
        elif disagreed is not None and not _about_sizes(disagreed, group):
            raise disagreed
        made = _settle(group, call, algorithm, timeout_s, where)
        return made if made_for is None else made_for

    made = start(group, lambda: _words(call) if request is None else request.text, action, async_op)
    return made if async_op or call.out is None else None


def _kept(tensors: Tensors) -> Tensors:
    return tensors if tensors is None or isinstance(tensors, torch.Tensor) else list(tensors)


def _words(call: Exchange) -> str:
    """The question for sizes in words: `gather(sizes, dst=0)`."""
    return f"{call.collective}({call_words('sizes', call.collective, call.root, call.op)})"


_CALL = re.compile(r"(\w+)\((?:sizes|(\w+)\[([^\]]*)\])(.*?)\)")
"""The words of a call: collective, dtype and sizes where they are known, and the rest."""


def _about_sizes(error: MismatchError, group: Group) -> bool:
    """Have all ranks made the same call, but for the sizes of blocks?"""
    found = [_CALL.match(text) for text, _ in error.calls.values()]
    calls = [match.groups() for match in found if match]
    if len(calls) < group.size:
        return False
    collectives, dtypes, sizes, rest = (set(part) for part in zip(*calls, strict=True))
    return len(collectives) == len(rest) == len(dtypes - {None}) == 1 and len(sizes) > 1


def _settle(group: Group, call: Exchange, algorithm: Any, timeout_s: float | None, where: str | None) -> Any:
    """Ask for all sizes, and run the call with them. Raises MismatchError on every rank where they do not fit."""
    with entering(group, call.collective):
        like = Request(call.collective, torch.empty(0, device="cpu"), call.inp, call.out, root=call.root)
        inp, out, bring_home = contiguous(like, group.rank)
        call = replace(call, inp=inp, out=out)
        takes = call.takes(group)
        mine = sides(call.collective, call.root, call.gives(group), takes, group.size)
    table = torch.empty(group.size, mine.numel(), dtype=torch.int64, device="cpu")
    ask = Request("all_gather", mine, mine, table, says=_words(call))
    question = prepare(group, ask, None, timeout_s)
    try:
        question(where)
    except MismatchError as error:  # the others have made the plain call, and see now that sizes are in question
        if not _about_sizes(error, group):
            raise
        question(where)
    number = group.host.call_number - 1
    agreed = Sides(table, call.collective, call.root)
    if wrong := agreed.disagreement():
        calls = {rank: (f"{_words(call)}: {text}", "") for rank, text in wrong.items()}
        calls[group.rank] = (calls[group.rank][0], where or caller())
        raise MismatchError(number, calls, agreed.odd())
    _remember(group, call, agreed.plain())
    with entering(group, call.collective):
        takes = agreed.make_takes(group.rank) if takes is None else takes
        request = _request(call, group, takes, agreed.extents(), agreed.dtype)
        action = prepare(group, request, algorithm, timeout_s)
    made = action(where)
    bring_home()
    return made


def _remember(group: Group, call: Exchange, alike: bool) -> None:
    """Keep, on all ranks alike, whether to ask for sizes next time."""
    if not alike:
        group.uneven[call.kind] = _ALIKE_AGAIN
        forget(group, call.collective)
    elif call.kind in group.uneven:
        group.uneven[call.kind] -= 1
        if not group.uneven[call.kind]:
            del group.uneven[call.kind]


def _request(
    call: Exchange,
    group: Group,
    takes: Sequence[torch.Tensor | None] | None,
    extents: Sequence[int],
    dtype: torch.dtype | None = None,
) -> Request:
    """The call with these sizes of blocks."""
    given = [tensor for tensor in call.gives(group) if tensor is not None]
    taken = [tensor for tensor in takes or () if tensor is not None]
    like = blank(max(extents, default=0), dtype or (given or taken)[0].dtype)
    one_in, one_out = call.collective in ("all_gather", "gather"), call.collective in ("reduce_scatter", "scatter")
    return Request(
        call.collective,
        like,
        given[0] if one_in else given or None,
        taken[0] if one_out else taken or None,
        call.op,
        call.root,
        extents=tuple(extents) if len(set(extents)) > 1 else None,
    )
