"""What the survivors of a group do together after a failure: agree on the failed ranks, and make a smaller group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence, Set

from ...base.errors import ArgumentError, OutOfMemory, PeerError, PeerFailed, WaitTimeout
from ...base.records import GivenUp, digest
from ...base.units import ranks_text, seconds
from ...engine.memory.board import Topic
from ...engine.memory.sub_arena import SubArena
from ...hosts.span import Span
from ..group.current import get_default, set_default
from ..group.group import Group, shrinks
from .agreement import next_proposal
from .shrink_agreement import (
    MOST_NAMED,
    agree_to_shrink,
    check_cut_off,
    in_words,
    named,
    nap,
    tell_interrupted,
    withdraw,
)


def agree_on_failed(group: Group, timeout_s: float) -> frozenset[int]:
    """The ranks that have failed. All ranks that ask because a call failed get the same set, also if they ask later.

    A rank that is not in a call is not waited for; it finds the decision later. A rank that is stopped here holds up
    the others for at most timeout_s. Then each rank decides by what it sees.
    """
    boards = [group.host.arena.board(rank) for rank in range(group.size)]
    mine, peers = boards[group.rank].proposal(Topic.FAILURE), [rank for rank in range(group.size) if rank != group.rank]
    told_at, deadline = time.monotonic(), time.monotonic() + timeout_s

    def is_decided() -> bool:
        return any(
            told is not None and told.decided for told in (boards[rank].proposal(Topic.FAILURE) for rank in peers)
        )

    while mine is None or not mine.decided:
        if group.span is not None and mine is not None:  # read proposals only after this rank's own has arrived
            group.span.refresh(deadline, is_decided)
        gone = {rank for rank in peers if group.liveness.gone(rank)}
        following = next_proposal(mine, {rank: boards[rank].proposal(Topic.FAILURE) for rank in peers}, gone)
        if following != mine:
            boards[group.rank].set_proposal(Topic.FAILURE, following)
            mine, told_at = following, time.monotonic()
            if group.span is not None:
                group.span.tell()
        elif time.monotonic() > deadline:
            break
        else:
            nap(told_at)
    return mine.failed


@shrinks
def shrink(group: Group, without: Iterable[int], timeout_s: float | None) -> Group:
    """See `Group.shrink`."""
    leave_out = frozenset(without)
    if strangers := leave_out - set(range(group.size)):
        raise ArgumentError(f"without: there is no rank {min(strangers)} among the {group.size} of {group.name!r}")
    check_cut_off(group)
    allowed_s = group.timeout_s if timeout_s is None else seconds(timeout_s)
    group.host.arena.board(group.rank).set_interrupted("")
    try:
        return _make_smaller(group, leave_out, allowed_s)
    except (PeerError, WaitTimeout):
        raise  # the other ranks find the cause, too, or this rank can make the call again while they wait
    except BaseException as error:
        if isinstance(error, OutOfMemory) and group.span is None:
            raise  # all ranks of this host find the cause, too
        withdraw(group)
        tell_interrupted(group, error)
        raise


def _make_smaller(group: Group, leave_out: Set[int], allowed_s: float) -> Group:
    """Go on in a smaller group. Raises WaitTimeout if that takes longer than allowed_s."""
    group.host.lender.collect()
    _end_calls(group, leave_out)
    memory = agree_to_shrink(group, leave_out, allowed_s)
    board = memory.board(memory.rank)
    try:
        board.set_gave_up(GivenUp())
        return go_on(group, memory, [group.world_ranks.index(there) for there in memory.members])
    except BaseException as error:  # the others have gone on, and their first call waits for this rank
        board.set_gave_up(GivenUp(1, reason=f"{in_words(error)} in shrink()"))
        raise


def _end_calls(group: Group, leave_out: Set[int]) -> None:
    """Tell ranks that wait for this rank, in later calls or for messages, that it shrinks the group."""
    board = group.host.arena.board(group.rank)
    if group.broken is None and not board.gave_up.number:
        gone = {rank for rank in range(group.size) if rank in leave_out or group.liveness.left(rank)} - {group.rank}
        without = f" without {ranks_text(sorted(gone), MOST_NAMED)}" if gone else ""
        reason = f"goes on in a smaller group{without}"
        board.set_gave_up(GivenUp(group.host.call_number, blames=frozenset(gone), reason=reason))
        if group.span is not None:
            group.span.tell()


def go_on(group: Group, arena: SubArena, members: Sequence[int] | None = None) -> Group:
    """The group that replaces this one, in memory that its members have agreed on.

    members: their ranks in this group, if it spans hosts.
    """
    name, span = ranks_text(arena.members, MOST_NAMED), None
    if group.span is not None and members is not None and (hosts := group.hosts.restrict(members)).spans:
        span = Span(hosts, arena.rank, digest(group.span.gid, members), group.span.carrier, group.span.far)
    following = Group(arena, arena.rank, name=name, config=group.host.config, parent=group.world, span=span)
    following.timeout_s, following.made_of = group.timeout_s, None
    if group.broken is None:
        group.break_off(PeerFailed(group.rank, f"went on in group {name!r}", group.rank, "a call", named(group)))
    if get_default() is group:
        set_default(following)
    return following
