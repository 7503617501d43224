"""What the ranks of a group hear where an exception such as Ctrl-C has ended `shrink()` on one of them."""

from __future__ import annotations

from collections.abc import Iterable

from ...base.errors import PeerFailed
from ..group.group import Group

SHRINK = "shrink()"
"""The call, as errors name it."""


def named(group: Group) -> tuple[int, ...]:
    """The members as ranks of the world, where messages shall name these, too."""
    return group.world_ranks if group.parent else ()


def in_words(error: BaseException) -> str:
    """The exception, as other ranks hear of it."""
    kind, said = type(error).__name__, str(error)
    return f"{kind}: {said}" if said else kind


def tell_interrupted(group: Group, error: BaseException) -> None:
    """Let the others hear which exception has ended this rank's `shrink()`, in which they wait for it."""
    board = group.host.arena.board(group.rank)
    if not board.interrupted[1]:
        board.set_interrupted(in_words(error))
    if group.span is not None:
        group.span.tell()


def check_interrupted(group: Group, ranks: Iterable[int]) -> None:
    """Raise PeerFailed, once for each exception, if one has ended the `shrink()` of one of these ranks."""
    for rank in ranks:
        number, words = group.host.arena.board(rank).interrupted
        if words and group.heard_of.get(rank) != number:
            group.heard_of[rank] = number
            move = "call shrink() again: it waits until that rank does so, too, or has ended"
            raise PeerFailed(rank, f"{words}; {move}", group.rank, SHRINK, named(group))


def of_interrupted(group: Group, ranks: Iterable[int]) -> str:
    """For a message: what has ended the `shrink()` of those of these ranks that had called it."""
    said = {rank: group.host.arena.board(rank).interrupted[1] for rank in ranks}
    return "".join(
        f" In rank {rank}, {words} has ended it: let that rank call it again, or end it."
        for rank, words in said.items()
        if words
    )
