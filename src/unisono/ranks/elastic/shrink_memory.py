"""The memory of a smaller group: the first of its members on a host that can lends it, by a word on its board."""

from __future__ import annotations

from ...base.errors import OutOfMemory
from ...base.units import ranks_text
from ..group.group import Group
from .interruption import tell_interrupted

MOST_NAMED = 6
"""How many members the name of such a group lists."""
_NONE = 0
"""In place of a region's start: this rank cannot lend any."""


def find_memory(group: Group, failed: frozenset[int]) -> bool:
    """Find the memory of the group without these, or lend it; False: the rank that is to lend it has not done so yet.

    All members have told these, so the rank that lends knows a single set of so many. Raises OutOfMemory where no
    member on this host can lend any.
    """
    members = [rank for rank in range(group.size) if rank not in failed]
    lender, start = _find(group, failed, group.rank)
    while lender == group.rank and start is None:
        _lend(group, failed, members)
        lender, start = _find(group, failed, group.rank)
    if lender is None:
        full = ranks_text(_members_beside(group, failed, group.rank), MOST_NAMED)
        move = "or these ranks failed in shrink(): start the job again"
        raise OutOfMemory(f"the shared memory of {full} has no room for a group, {move}")
    if start is not None and failed not in group.smaller:
        mine, of = members.index(group.rank), members.index(lender)
        world_ranks, here = [group.world_ranks[rank] for rank in members], group.hosts.restrict(members).beside(mine)
        group.smaller[failed] = group.host.lender.borrow(start, world_ranks, mine, of, here)
    return start is not None


def late_lender(group: Group, failed: frozenset[int], rank: int) -> int | None:
    """Who keeps this member waiting for memory of the group without these; None: nobody does."""
    lender, start = _find(group, failed, rank)
    return lender if start is None else None


def _members_beside(group: Group, failed: frozenset[int], rank: int) -> list[int]:
    return [there for there in group.hosts.beside(rank) if there not in failed]


def _find(group: Group, failed: frozenset[int], rank: int) -> tuple[int | None, int | None]:
    """Who lends memory on the host of this member, and where it begins, if it has lent it; None: nobody can."""
    for there in _members_beside(group, failed, rank):
        start = group.host.arena.board(there).region(len(failed))
        if start != _NONE:
            return there, start
    return None, None


def _lend(group: Group, failed: frozenset[int], members: list[int]) -> None:
    """Lend memory, or tell the others that this rank cannot. What fails here, they hear."""
    board, lender, mine = group.host.arena.board(group.rank), group.host.lender, members.index(group.rank)
    try:
        here = group.hosts.restrict(members).beside(mine)
        memory = group.smaller[failed] = lender.lend([group.world_ranks[rank] for rank in members], mine, here)
        board.set_region(len(failed), memory.start)
    except BaseException as error:
        if not isinstance(error, OutOfMemory):
            tell_interrupted(group, error)  # before the others pass this rank over
        if board.region(len(failed)) is None:
            if failed in group.smaller:
                lender.take_back(group.smaller.pop(failed))
            board.set_region(len(failed), _NONE)
        if not isinstance(error, OutOfMemory):
            raise


def free_others(group: Group, decided: frozenset[int]) -> None:
    """Free what this rank has lent for groups that are not made: the others go on without those who are `decided`."""
    for failed, memory in list(group.smaller.items()):
        if failed != decided:
            del group.smaller[failed]
            if memory.owner == group.world_ranks[group.rank]:
                group.host.lender.take_back(memory)
