"""What ends a wait from outside: a rank has aborted the group, or an exception such as Ctrl-C ends this rank's part."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import PeerFailed
from ..membership.group import Group
from ..records import DepartureKind, GivenUp

__all__ = ["aborted", "check_abort", "give_up"]


def aborted(group: Group) -> tuple[Group, int, str] | None:
    """Who has aborted a group, or one that it was made of: that group, a rank of it, its words; None: nobody."""
    at: Group | None = group
    while at is not None:
        if not at.closed:
            for rank in range(at.size):
                gone = at.host.arena.board(rank).gone
                if gone is not None and gone.how is DepartureKind.ABANDONED:
                    return at, rank, gone.words
        at = at.made_of
    return None


def check_abort(group: Group, call: Callable[[], str]) -> None:
    """Raise PeerFailed if the group has been aborted, by this rank or another one, and refuse all further calls.

    call: makes the text of the call that waits. The ranks in the error are those of the group that was aborted.
    """
    found = aborted(group)
    if found is not None:
        at, rank, words = found
        world_ranks = at.world_ranks if at.parent else ()
        error = PeerFailed(rank, words, at.rank, call(), world_ranks, whole=True)
        at.break_off_all(error)
        raise error


def give_up(group: Group, words: str, call: str) -> None:
    """Break the group off where an exception has ended this rank's part in it, and tell the peers.

    words: what has happened. call: the call that it has ended.
    """
    if group.broken is None and not group.closed:
        world_ranks = group.world_ranks if group.parent else ()
        group.break_off(PeerFailed(group.rank, words, group.rank, call, world_ranks))
        board, number = group.host.arena.board(group.rank), group.host.call_number
        board.set_gave_up(GivenUp(number, reason=words))
