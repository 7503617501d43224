"""What the survivors of a group do together after a failure: agree on who has failed, and go on in a smaller group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence, Set

from ...base.errors import ArgumentError, LeftOut, OutOfMemory, PeerError, PeerFailed, WaitTimeout
from ...base.records import GivenUp, digest
from ...base.units import ranks_text, seconds
from ...engine.memory.board import Topic
from ...engine.memory.sub_arena import SubArena
from ...hosts.span import Span
from ..group.current import get_default, set_default
from ..group.group import Group, shrinks
from .agreement import next_proposal

_SHORTEST_NAP_S, _LONGEST_NAP_S = 0.0002, 0.005
_LENDS_NONE = 1
"""In place of a region's start, which is at the beginning of a page. It stays: other ranks may have gone on by it."""
SHRINK = "shrink()"
"""The call, as errors name it."""
MOST_NAMED = 6
"""How many members the name of such a group lists."""


def agree_on_failed(group: Group, timeout_s: float) -> frozenset[int]:
    """The ranks that have failed: the same set on all ranks that ask because a call failed, at whatever time they do.

    Ranks that are not in a call are not waited for; they find what has been decided. A rank that is stopped while it
    agrees holds the others up for timeout_s at most; then each goes by what it sees.
    """
    failed, _ = _agree(group, Topic.FAILURE, frozenset(), time.monotonic() + timeout_s)
    return failed


@shrinks
def shrink(group: Group, without: Iterable[int], timeout_s: float | None) -> Group:
    """See `Group.shrink`."""
    leave_out = frozenset(without)
    if strangers := leave_out - set(range(group.size)):
        raise ArgumentError(f"without: there is no rank {min(strangers)} among the {group.size} of {group.name!r}")
    if group.span is not None and group.span.far.cut_off:  # others may go on, and there must not be two such groups
        raise LeftOut(group.rank, group.span.here, group.name, _named(group))
    allowed_s = group.timeout_s if timeout_s is None else seconds(timeout_s)
    group.host.arena.board(group.rank).set_interrupted("")
    try:
        return _make_smaller(group, leave_out, allowed_s)
    except (OutOfMemory, PeerError, WaitTimeout):
        raise  # the others find that out, or this rank can make the call again while they wait
    except BaseException as error:
        _tell_interrupted(group, error)
        raise


def _make_smaller(group: Group, leave_out: Set[int], allowed_s: float) -> Group:
    """Go on in a smaller group. Raises WaitTimeout if that takes longer than allowed_s."""
    began = time.monotonic()
    _end_calls(group, leave_out)
    failed, missing = _agree(group, Topic.SHRINK, leave_out, began + allowed_s)
    if missing:
        raise _late(group, began, missing)
    check_left_out(group)
    members = [rank for rank in range(group.size) if rank not in failed]
    return go_on(group, _region(group, members, began, began + allowed_s), members)


def _tell_interrupted(group: Group, error: BaseException) -> None:
    """Let the others hear which exception has ended this rank's `shrink()`, in which they wait for it."""
    board, kind, said = group.host.arena.board(group.rank), type(error).__name__, str(error)
    if not board.interrupted[1]:
        board.set_interrupted(f"{kind}: {said}" if said else kind)
    if group.span is not None:
        group.span.tell()


def _check_interrupted(group: Group, ranks: Iterable[int]) -> None:
    """Raise PeerFailed, once for each exception, if one has ended the `shrink()` of one of these ranks."""
    for rank in ranks:
        number, words = group.host.arena.board(rank).interrupted
        if words and group.heard_of.get(rank) != number:
            group.heard_of[rank] = number
            move = "call shrink() again: it waits until that rank does so, too, or has ended"
            raise PeerFailed(rank, f"{words}; {move}", group.rank, SHRINK, _named(group))


def _late(group: Group, began: float, missing: Iterable[int], details: str = "") -> WaitTimeout:
    """The error that names these ranks, and what has ended the `shrink()` of those who had called it."""
    missing = sorted(missing)
    for rank in missing:
        if words := group.host.arena.board(rank).interrupted[1]:
            details += f" In rank {rank}, {words} has ended it: let that rank call it again, or end it."
    return WaitTimeout(SHRINK, time.monotonic() - began, missing, group.rank, details, _named(group))


def _end_calls(group: Group, leave_out: Set[int]) -> None:
    """Let those hear it who wait for this rank, in later calls or for messages: they do not shrink the group yet."""
    board = group.host.arena.board(group.rank)
    if group.broken is None and not board.gave_up.number:
        gone = {rank for rank in range(group.size) if rank in leave_out or group.liveness.left(rank)} - {group.rank}
        without = f" without {ranks_text(sorted(gone), MOST_NAMED)}" if gone else ""
        reason = f"goes on in a smaller group{without}"
        board.set_gave_up(GivenUp(group.host.call_number, blames=frozenset(gone), reason=reason))
        if group.span is not None:
            group.span.tell()


def go_on(group: Group, arena: SubArena, members: Sequence[int] | None = None) -> Group:
    """The group that this rank uses from now on in place of this one, in memory that its members have agreed on.

    members: their ranks in this group, if it spans hosts.
    """
    name, span = ranks_text(arena.members, MOST_NAMED), None
    if group.span is not None and members is not None and (hosts := group.hosts.restrict(members)).spans:
        span = Span(hosts, arena.rank, digest(group.span.gid, members), group.span.carrier, group.span.far)
    following = Group(arena, arena.rank, name=name, config=group.host.config, parent=group.world, span=span)
    following.timeout_s, following.made_of = group.timeout_s, None
    if group.broken is None:
        group.break_off(PeerFailed(group.rank, f"went on in group {name!r}", group.rank, "a call", _named(group)))
    if get_default() is group:
        set_default(following)
    return following


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
    told_at = time.monotonic()
    has_gone = group.liveness.left if topic is Topic.SHRINK else group.liveness.gone

    def is_decided() -> bool:
        return any(told is not None and told.decided for told in (boards[rank].proposal(topic) for rank in peers))

    while mine is None or not mine.decided:
        if group.span is not None and mine is not None:  # what counts is what others have told after this rank did
            group.span.refresh(deadline, is_decided)
        gone = {rank for rank in peers if rank in leave_out or has_gone(rank)} | (leave_out & {group.rank})
        others = {rank: boards[rank].proposal(topic) for rank in peers}
        following = next_proposal(mine, others, gone, of_all=topic is Topic.SHRINK)
        if following != mine:
            boards[group.rank].set_proposal(topic, following)
            mine, told_at = following, time.monotonic()
            if group.span is not None:
                group.span.tell()
            continue
        missing = frozenset(rank for rank in peers if rank not in mine.failed and others[rank] != mine)
        if topic is Topic.SHRINK:
            _check_interrupted(group, missing)
        if time.monotonic() > deadline:
            return mine.failed, missing
        _nap(told_at)
    return mine.failed, frozenset()


def _nap(since: float) -> None:
    """Sleep for a twentieth of the wait so far: what comes soon is seen soon, and a long wait leaves the processor."""
    time.sleep(min(max((time.monotonic() - since) / 20, _SHORTEST_NAP_S), _LONGEST_NAP_S))


def _region(group: Group, members: list[int], began: float, deadline: float) -> SubArena:
    """The memory of the smaller group: of the first member here that lends it.

    A member that ends before it has lent memory, or cannot lend any, is passed over, for good. One in which an
    exception has ended the call is waited for: it is a member. Raises WaitTimeout, and PeerFailed because of it.
    """
    lender, mine = group.host.lender, members.index(group.rank)
    lender.collect()
    world_ranks = [group.world_ranks[rank] for rank in members]
    here = group.hosts.restrict(members).beside(mine)
    agreed_at = time.monotonic()
    for number in here:
        candidate = members[number]
        board = group.host.arena.board(candidate)
        if number == mine and board.region is None and (arena := _lend(group, world_ranks, mine, here)):
            return arena
        while ((start := board.region) is None or board.interrupted[1]) and not group.liveness.left(candidate):
            _check_interrupted(group, [candidate])
            if time.monotonic() > deadline:
                details = " It is to lend the memory: let it go on, or end it." if start is None else ""
                raise _late(group, began, [candidate], details)
            _nap(agreed_at)
        start = start or board.region  # it may have lent it before it went
        if start not in (None, _LENDS_NONE):
            return lender.borrow(start, world_ranks, mine, number, here)
    raise OutOfMemory(
        f"the shared memory of {ranks_text([members[number] for number in here], MOST_NAMED)} has no room for a group, "
        "or these ranks failed in shrink(): start the job again"
    )


def _lend(group: Group, world_ranks: Sequence[int], mine: int, here: Sequence[int]) -> SubArena | None:
    """Lend memory for the smaller group; None if there is no room for it. What fails here, the other ranks hear."""
    board = group.host.arena.board(group.rank)
    try:
        arena = group.host.lender.lend(world_ranks, mine, here)
        board.set_region(arena.start)
    except BaseException as error:
        if not isinstance(error, OutOfMemory):
            _tell_interrupted(group, error)  # before the others pass this rank over
        if board.region is None:
            board.set_region(_LENDS_NONE)
        if isinstance(error, OutOfMemory):
            return None
        raise
    return arena
