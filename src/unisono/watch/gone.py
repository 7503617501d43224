"""Find out whether a peer has gone, from its board and from the system."""

from __future__ import annotations

import os
import time

from ..engine.board import Board
from ..engine.process import ending_in_words, exit_status, has_ended, watch_process
from ..membership.group import Group
from ..records import Departure, DepartureKind

__all__ = ["gone"]

_WORDS_S = 0.1
"""How long to wait, after a process has died, for its parent to write the cause, such as a signal, on the board, where
the system does not tell it."""


def gone(group: Group, rank: int) -> Departure | None:
    """How a peer has gone; None if it is still there."""
    board = group.host.arena.board(rank)
    if group.parent is not None:  # a peer may have left this group only; its death is found through the world
        return board.gone or gone(group.world, group.world_ranks[rank])
    if board.gone or not board.pid:
        return board.gone
    if not _has_died(group, rank, board):
        return None
    status = exit_status(board.pid, board.ticks, group.pidfds.get(rank))
    until = time.monotonic() + _WORDS_S
    while status is None and board.has_herald and not board.gone and time.monotonic() < until:
        time.sleep(0.002)
    return board.gone or Departure(DepartureKind.DIED, "died" if status is None else ending_in_words(status))


def _has_died(group: Group, rank: int, board: Board) -> bool:
    if rank not in group.pidfds:
        try:
            fd = watch_process(board.pid, board.ticks)
        except OSError:  # no file descriptor is free
            return not _exists(board.pid)
        if fd is None:
            return True
        if group.pidfds.setdefault(rank, fd) != fd:
            os.close(fd)  # another thread, in a call of another sub-group, was faster
    return has_ended(group.pidfds[rank])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
