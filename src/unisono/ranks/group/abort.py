"""What ends a wait from outside: a rank has aborted the group, or shrinks a group that this one was made of; or an
exception such as Ctrl-C ends this rank's own part.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...base.errors import PeerFailed
from ...base.records import DepartureKind, GivenUp
from .group import Group

_OWN_S = 0.5
"""Another thread of this rank may be in a call of the group that a peer shrinks. It has this long to raise the cause,
before this thread raises that the peer shrinks the group.
"""


def aborted(group: Group) -> tuple[Group, int, str] | None:
    """The abort of a group, or of a group that it was made of: that group, the rank and its reason; None: no abort."""
    at: Group | None = group
    while at is not None:
        if not at.closed:
            for rank in range(at.size):
                gone = at.engine.arena.board(rank).gone
                if gone is not None and gone.how is DepartureKind.ABORTED:
                    return at, rank, gone.words
        at = at.made_of
    return None


def check_abort(group: Group, call: Callable[[], str]) -> None:
    """Raise PeerFailed if the group has been aborted, by this rank or another one, and refuse all further calls.

    Also if a peer shrinks a group that this one was made of. The ranks in the error are ranks of the aborted group.

    call: makes the text of the call that waits.
    """
    found = aborted(group)
    if found is not None:
        at, rank, words = found
        error = PeerFailed(rank, words, at.rank, call(), at.named, whole=True)
        at.give_up_all(error)
        raise error
    _check_shrinking(group, call)


def _check_shrinking(group: Group, call: Callable[[], str]) -> None:
    """Raise PeerFailed if a peer shrinks a group that this one was made of: there the peer waits for this rank."""
    found: tuple[int, Group] | None = None
    above = group.made_of
    while above is not None and found is None:
        boards = {} if above.closed else {one: above.engine.arena.board(i) for i, one in enumerate(above.world_ranks)}
        members = ((rank, boards.get(there)) for rank, there in enumerate(group.world_ranks))
        shrinking = [rank for rank, board in members if board is not None and board.proposal is not None]
        if shrinking and group.rank not in shrinking:
            found = shrinking[0], above
        above = above.made_of
    if found is None:
        group.peer_shrinks_since = None
        return
    since = group.peer_shrinks_since = group.peer_shrinks_since or time.monotonic()
    if time.monotonic() - since > _OWN_S:
        reason = f"it shrinks group {found[1].name!r}, the parent of group {group.name!r}. Shrink both."
        raise PeerFailed(found[0], reason, group.rank, call(), group.named)


def give_up(group: Group, words: str, call: str) -> None:
    """Give the group up after an exception has ended this rank's part in it, and tell the peers.

    words: what has happened.
    call: the call that the exception has ended.
    """
    if group.broken is None and not group.closed:
        group.give_up(PeerFailed(group.rank, words, group.rank, call, group.named))
        board, number = group.engine.arena.board(group.rank), group.engine.call_number
        board.set_gave_up(GivenUp(number, reason=words))
        if group.span is not None:
            group.span.tell()
