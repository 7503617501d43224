"""Whether the members of a group are still there: what their boards say, and what the system knows."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from ..engine.board import Board
from ..engine.layout import Layout
from ..engine.process import ending_in_words, exit_status, has_ended, watch_process
from ..records import Departure, DepartureKind

__all__ = ["Presence"]

_WORDS_S = 0.1
"""How long to wait, after a process has died, for its parent to write the cause, such as a signal, on the board, where
the system does not tell it."""


class Presence:
    """The members of a group, as one of them sees them.

    world: that of all ranks, and world_ranks: the members, if this is a sub-group: a peer may leave a sub-group only;
    its death is found through the world.
    """

    def __init__(self, layout: Layout, world: Presence | None = None, world_ranks: Sequence[int] = ()) -> None:
        self._layout, self._world, self._world_ranks = layout, world, world_ranks
        self._pidfds: dict[int, int] = {}

    def gone(self, rank: int) -> Departure | None:
        """How a member has gone; None if it is still there."""
        board = self._layout.board(rank)
        if self._world is not None:
            return board.gone or self._world.gone(self._world_ranks[rank])
        return board.gone or self._death(rank, board)

    def left(self, rank: int) -> Departure | None:
        """How a member has gone for good: one that has aborted the group may be there, and make another one."""
        board = self._layout.board(rank)
        if board.gone and board.gone.how is not DepartureKind.ABANDONED:
            return board.gone
        return self._death(rank, board) if self._world is None else self._world.left(self._world_ranks[rank])

    def _death(self, rank: int, board: Board) -> Departure | None:
        """How a member's process has ended; None if it is there, or has not come yet."""
        if not board.pid or not self._has_died(rank, board):
            return None
        status = exit_status(board.pid, board.ticks, self._pidfds.get(rank))
        until = time.monotonic() + _WORDS_S
        while status is None and board.has_herald and not board.gone and time.monotonic() < until:
            time.sleep(0.002)
        words = "died" if status is None else ending_in_words(status)
        return board.gone or Departure(DepartureKind.DIED, words)

    def close(self) -> None:
        """Close the descriptors of processes."""
        for fd in self._pidfds.values():
            os.close(fd)
        self._pidfds.clear()

    def _has_died(self, rank: int, board: Board) -> bool:
        if rank not in self._pidfds:
            try:
                fd = watch_process(board.pid, board.ticks)
            except OSError:  # no file descriptor is free
                return not _exists(board.pid)
            if fd is None:
                return True
            if self._pidfds.setdefault(rank, fd) != fd:
                os.close(fd)  # another thread, in a call of another sub-group, was faster
        return has_ended(self._pidfds[rank])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
