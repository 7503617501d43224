"""What the survivors of a group do together after a failure: agree on who has failed, and go on in a smaller group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Set

from ..engine.board import Topic
from ..engine.sub_arena import SubArena
from ..errors import ArgumentError, LeftOut, OutOfMemory, PeerFailed, WaitTimeout
from ..units import ranks_text, seconds
from .agreement import next_proposal
from .current import get_default, set_default
from .group import Group

__all__ = ["agree_on_failed", "check_left_out", "shrink"]

_ASK_S = 0.0002
_NO_ROOM = 1
"""In place of a region's start, which is at the beginning of a page."""
_MOST_NAMED = 6


def agree_on_failed(group: Group, timeout_s: float) -> frozenset[int]:
    """The ranks that have failed: the same set on all ranks that ask because a call failed, at whatever time they do.

    Ranks that are not in a call are not waited for; they find what has been decided. A rank that is stopped while it
    agrees holds the others up for timeout_s at most; then each goes by what it sees.
    """
    failed, _ = _agree(group, Topic.FAILURE, frozenset(), time.monotonic() + timeout_s)
    return failed


def shrink(group: Group, without: Iterable[int], timeout_s: float | None) -> Group:
    """See `Group.shrink`."""
    leave_out = frozenset(without)
    if strangers := leave_out - set(range(group.size)):
        raise ArgumentError(f"without: there is no rank {min(strangers)} among the {group.size} of {group.name!r}")
    began = time.monotonic()
    allowed_s = group.timeout_s if timeout_s is None else seconds(timeout_s)
    failed, missing = _agree(group, Topic.SHRINK, leave_out, began + allowed_s)
    if missing:
        waited_s = time.monotonic() - began
        raise WaitTimeout("shrink()", waited_s, sorted(missing), group.rank, "", _named(group))
    check_left_out(group)
    members = [rank for rank in range(group.size) if rank not in failed]
    world_ranks = [group.world_ranks[rank] for rank in members]
    arena = _region(group, members, world_ranks)
    name = ranks_text(world_ranks, _MOST_NAMED)
    smaller = Group(arena, members.index(group.rank), name=name, config=group.host.config, parent=group.world)
    smaller.timeout_s, smaller.made_of = group.timeout_s, None
    if group.broken is None:
        group.break_off(PeerFailed(group.rank, f"went on in group {name!r}", group.rank, "a call", _named(group)))
    if get_default() is group:
        set_default(smaller)
    return smaller


def check_left_out(group: Group) -> None:
    """Raise LeftOut if the others have gone on without this rank."""
    for rank in range(group.size):
        decision = group.host.arena.board(rank).proposal(Topic.SHRINK)
        if decision is not None and decision.decided and group.rank in decision.failed:
            raise LeftOut(group.rank, sorted(decision.failed), group.name, _named(group))


def _named(group: Group) -> tuple[int, ...]:
    """The members as ranks of the world, where messages shall name these, too."""
    return group.world_ranks if group.parent else ()


def _agree(group: Group, topic: Topic, leave_out: Set[int], deadline: float) -> tuple[frozenset[int], frozenset[int]]:
    """Take part in an agreement: the decision, and nobody; or this rank's view, and those who kept it from ending."""
    boards = [group.host.arena.board(rank) for rank in range(group.size)]
    mine, peers = boards[group.rank].proposal(topic), [rank for rank in range(group.size) if rank != group.rank]
    has_gone = group.presence.left if topic is Topic.SHRINK else group.presence.gone
    while mine is None or not mine.decided:
        gone = {rank for rank in peers if rank in leave_out or has_gone(rank)} | (leave_out & {group.rank})
        others = {rank: boards[rank].proposal(topic) for rank in peers}
        following = next_proposal(mine, others, gone, of_all=topic is Topic.SHRINK)
        if following != mine:
            boards[group.rank].set_proposal(topic, following)
            mine = following
        elif time.monotonic() > deadline:
            return mine.failed, frozenset(rank for rank in peers if rank not in mine.failed and others[rank] != mine)
        else:
            time.sleep(_ASK_S)
    return mine.failed, frozenset()


def _region(group: Group, members: list[int], world_ranks: list[int]) -> SubArena:
    """The memory of the smaller group. The first member lends it; if that one dies before it has, the next one does."""
    lender = group.host.lender
    lender.collect()
    mine = members.index(group.rank)
    for number, candidate in enumerate(members[:mine]):
        board = group.host.arena.board(candidate)
        while (start := board.region) is None and not group.presence.left(candidate):
            time.sleep(_ASK_S)
        start = start or board.region  # it may have lent it before it went
        if start == _NO_ROOM:
            raise OutOfMemory(f"the shared memory of rank {candidate} has no room for a group: free tensors there")
        if start is not None:
            return lender.borrow(start, world_ranks, mine, number)
    board = group.host.arena.board(group.rank)
    try:
        arena = lender.lend(world_ranks)
    except OutOfMemory:
        board.set_region(_NO_ROOM)
        raise
    board.set_region(arena.start)
    return arena
