"""What the survivors of a group do together after a failure: agree on the failed ranks, and make a smaller group."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set

from ...base.errors import ArgumentError, LeftOut, OutOfMemory, PeerError, PeerFailed, WaitTimeout
from ...base.python import nap
from ...base.records import GivenUp, Proposal
from ...base.units import integer, ranks_text, seconds
from ...engine.memory.sub_arena import SubArena, group_key
from .abort import aborted
from .agreement import agree, next_proposal
from .current import get_default, set_default
from .group import Group
from .sub_groups import group_in

SHRINK = "shrink()"
"""The name of the call in errors."""

_MOST_NAMED = 6
"""How many members the name of such a group lists."""

_NAPS_S = 0.0002, 0.005
_PATIENCE_S = 0.02  # how long a rank lets other ranks decide, at least; twice as long after each ballot of its own
_ANSWER_S = 0.5  # how long the others have to answer a late proposal, when the time of its rank is nearly up


def _in_words(error: BaseException) -> str:
    """The exception as text for other ranks."""
    kind, said = type(error).__name__, str(error)
    return f"{kind}: {said}" if said else kind


def _tell_interrupted(group: Group, error: BaseException) -> None:
    """An exception ends this rank's `shrink()`: tell the others, and let them wait unless they have decided already."""
    board = group.engine.arena.board(group.rank)
    mine = board.proposal
    if mine is not None and mine.ready:
        board.set_proposal(mine._replace(ready=False))
    board.set_attempt(board.attempt[0], _in_words(error))
    if group.span is not None:
        group.span.tell()


def _join_attempt(group: Group, least: int = 0) -> None:
    """Make the newest `shrink()` that a rank makes, at least this one: words about an earlier one do not count."""
    board = group.engine.arena.board
    newest = max(least, *(board(rank).attempt[0] for rank in range(group.size)))
    if newest > board(group.rank).attempt[0]:
        board(group.rank).set_attempt(newest)


def _check_interrupted(group: Group, attempts: Mapping[int, tuple[int, str]], ranks: Iterable[int]) -> None:
    """Raise PeerFailed if an exception has ended the `shrink()` of one of these ranks, which is not an earlier one.

    attempts: of the other ranks, by `Board.attempt`.
    """
    own = group.engine.arena.board(group.rank).attempt[0]
    for rank in ranks:
        number, words = attempts[rank]
        if words and number >= own:
            move = "Call shrink() again: it waits until that rank calls it too, or has ended"
            raise PeerFailed(rank, f"{words}. {move}.", group.rank, SHRINK, group.named)


def _find_memory(group: Group, failed: frozenset[int]) -> int | None:
    """Find the memory of the group without the failed ranks, or lend it. Returns the rank that has not lent it yet."""
    if failed in group.smaller:
        return None
    members = [rank for rank in range(group.size) if rank not in failed]
    mine, world_ranks = members.index(group.rank), [group.world_ranks[rank] for rank in members]
    here = group.hosts.restrict(members).beside(mine)
    found = group.engine.lender.memory(_key(group, failed), world_ranks, mine, here)
    if isinstance(found, int):
        return members[found]
    group.smaller[failed] = found
    return None


def _key(group: Group, failed: Set[int]) -> bytes:
    return group_key("shrink", group.gid, sorted(failed))


def _free_others(group: Group, decided: frozenset[int]) -> None:
    """Free memory that this rank has lent for other groups than the one without the `decided` ranks."""
    for failed, memory in list(group.smaller.items()):
        if failed != decided:
            del group.smaller[failed]
            if memory.owner == group.world_ranks[group.rank]:
                group.engine.lender.take_back(memory)


def check_left_out(group: Group) -> None:
    """Raise LeftOut if the others have decided to go on without this rank."""
    for decision in _told(group).values():
        if decision is not None and decision.decided and group.rank in decision.failed:
            raise LeftOut(group.rank, sorted(decision.failed), group.name, group.named)


def _check_cut_off(group: Group) -> None:
    """Raise LeftOut if this host is cut off: others may go on, and there must not be two such groups."""
    if group.span is not None and (why := group.span.far.cut_off):
        reason = f"{why}; ranks on other hosts may have continued"
        raise LeftOut(group.rank, group.span.here, group.name, group.named, reason)


def _agree_to_shrink(group: Group, without: Set[int], timeout_s: float) -> SubArena:
    """The memory of the smaller group. All ranks that return have the same group.

    Raises PeerFailed if an exception has ended the call on a rank that this one waits for. Raises WaitTimeout, LeftOut
    and OutOfMemory.
    """
    board, me = group.engine.arena.board(group.rank), group.rank
    began = changed_at = time.monotonic()
    mine, may_begin_at, ballots = board.proposal, began, 0
    attempts, waits_for, why = dict[int, tuple[int, str]](), list[int](), " Other hosts have not answered."
    while mine is None or not mine.decided:
        deadline = max(began + timeout_s, changed_at + min(timeout_s, _ANSWER_S))
        # Other ranks' proposals count if they are read after this rank's own has arrived.
        if group.span is None or mine is None or group.span.refresh(deadline):
            peers = [rank for rank in range(group.size) if rank != me]
            attempts = {rank: group.engine.arena.board(rank).attempt for rank in peers}
            gone = {rank for rank in peers if group.liveness.left(rank)}
            others = _told(group)  # last: ranks whose call has ended, or that have gone, may have decided before
            _check_cut_off(group)  # it counts all others as gone
            agreed = mine is not None and me not in mine.failed and agree(mine, others)
            lender = _find_memory(group, mine.failed) if mine is not None and agreed else None
            has_memory, may_begin = agreed and lender is None, time.monotonic() >= may_begin_at
            following = next_proposal(me, mine, others, gone | without, has_memory=has_memory, may_begin=may_begin)
            following = following._replace(lender=-1 if lender is None else lender)
            if following != mine:
                board.set_proposal(following)
                changed_at = time.monotonic()
                is_first = me == min(set(range(group.size)) - following.failed, default=me)
                if mine is not None and following.ballot != mine.ballot:
                    ballots += 1
                patience_s = 0.0 if is_first and not ballots else _PATIENCE_S * 2**ballots * (1 + me / group.size)
                mine, may_begin_at = following, changed_at + patience_s
                if group.span is not None:
                    group.span.tell()
                continue
            waits_for, why = _missing(group, mine, others)
            _check_interrupted(group, attempts, waits_for)
            _join_attempt(group)
        if time.monotonic() > deadline:
            said = [(rank, attempts[rank][1]) for rank in waits_for if attempts[rank][1]]
            move = "ended it: call it again there, or end that rank."
            details = why + "".join(f" On rank {rank}, {words} {move}" for rank, words in said)
            raise WaitTimeout(SHRINK, time.monotonic() - began, waits_for, me, details, group.named)
        nap(changed_at, *_NAPS_S)
    _free_others(group, mine.failed)
    if me in mine.failed:
        details = "" if len(mine.failed) < group.size else "every rank has failed or was left out by another one"
        raise LeftOut(me, sorted(mine.failed), group.name, group.named, details)
    return group.smaller[mine.failed]


def _told(group: Group) -> dict[int, Proposal | None]:
    """The proposals of the other ranks."""
    peers = [rank for rank in range(group.size) if rank != group.rank]
    return {rank: group.engine.arena.board(rank).proposal for rank in peers}


def _missing(group: Group, mine: Proposal, others: Mapping[int, Proposal | None]) -> tuple[list[int], str]:
    """The ranks that this rank waits for, and a sentence about them."""
    members = {rank: one for rank, one in others.items() if rank not in mine.failed}
    if group.rank in mine.failed:
        return list(members), " They have left this rank out, and have not gone on yet."
    if late := [rank for rank, one in members.items() if one is None or one.failed != mine.failed]:
        return late, ""
    unready = {rank: one for rank, one in {**members, group.rank: mine}.items() if one is not None and not one.ready}
    late = sorted({one.lender if one.lender in unready else rank for rank, one in unready.items()} - {group.rank})
    if not late:
        full = " This rank's table of groups is full: let the other ranks join the groups that it has made."
        return [], full if mine.lender == group.rank else " All have agreed: call it again."
    its, it = (" It is", "it") if len(late) == 1 else (" They are", "them")
    move = f"let {it} go on, end {it}, or leave {it} out: shrink(without={late})."
    return late, f"{its} to lend or use the memory, as all have agreed: {move}"


def shrink(group: Group, without: Iterable[int], timeout_s: float | None) -> Group:
    """See `Group.shrink`."""
    if not isinstance(without, Iterable):
        raise ArgumentError(f"without: got {type(without).__name__}, expected a list of ranks")
    leave_out = frozenset(integer("without", rank) for rank in without)
    if strangers := leave_out - set(range(group.size)):
        raise ArgumentError(f"without: rank {min(strangers)} is not in group {group.name!r} (size {group.size})")
    _check_cut_off(group)
    allowed_s = group.timeout_s if timeout_s is None else seconds(timeout_s)
    _join_attempt(group, group.engine.arena.board(group.rank).attempt[0] + 1)
    try:
        return _make_smaller(group, leave_out, allowed_s)
    except (PeerError, WaitTimeout):
        raise  # the other ranks find the cause, too, or this rank can make the call again while they wait
    except BaseException as error:
        if isinstance(error, OutOfMemory) and group.span is None:
            raise  # all ranks of this host find the cause, too
        _tell_interrupted(group, error)
        raise


def _make_smaller(group: Group, leave_out: Set[int], allowed_s: float) -> Group:
    """Go on in a smaller group. Raises WaitTimeout if that takes longer than allowed_s."""
    group.engine.lender.collect()
    _end_calls(group, leave_out)
    memory = _agree_to_shrink(group, leave_out, allowed_s)
    board = memory.board(memory.rank)
    try:
        board.set_gave_up(GivenUp())
        return _go_on(group, memory)
    except BaseException as error:  # the others have gone on, and their first call waits for this rank
        board.set_gave_up(GivenUp(1, reason=f"{_in_words(error)} in shrink()"))
        raise


def _end_calls(group: Group, leave_out: Set[int]) -> None:
    """Tell ranks that wait for this rank, in later calls or for messages, that it shrinks the group."""
    board = group.engine.arena.board(group.rank)
    if group.broken is None and not board.gave_up.number:
        gone = {rank for rank in range(group.size) if rank in leave_out or group.liveness.left(rank)} - {group.rank}
        without = f" without {ranks_text(sorted(gone), _MOST_NAMED)}" if gone else ""
        reason = f"goes on in a smaller group{without}"
        board.set_gave_up(GivenUp(group.engine.call_number, blames=frozenset(gone), reason=reason))
        if group.span is not None:
            group.span.tell()


def _go_on(group: Group, memory: SubArena) -> Group:
    """The group that replaces this one, in memory that its members have agreed on."""
    failed = {rank for rank, there in enumerate(group.world_ranks) if there not in memory.members}
    name = ranks_text(memory.members, _MOST_NAMED)
    following = group_in(memory, _key(group, failed), name, group.world)
    following.timeout_s, above = group.timeout_s, group.made_of
    following.made_of = None if above is None or above.broken is not None else above
    for one in group.world.all_of_it:
        if one.made_of is group and not aborted(group):  # a rank that waits there sees it if a peer shrinks this group
            one.made_of = following
    if group.broken is None:
        group.replaced = True
        reason = f"this group was replaced by group {name!r}. Use that one."
        group.give_up(PeerFailed(group.rank, reason, group.rank, "a call", group.named))
    if get_default() is group:
        set_default(following)
    return following
