"""Find out whether a peer has gone, from its board and from the system."""

from __future__ import annotations

import os
import select
import time

from ..membership.group import Group
from ..records import Departure, DepartureKind

__all__ = ["gone"]

_WORDS_S = 0.1
"""How long to wait, after a process has died, for its parent to write the cause, such as a signal, on the board."""


def gone(group: Group, rank: int) -> Departure | None:
    """How a peer has gone; None if it is still there."""
    board = group.host.arena.board(rank)
    if group.parent is not None:  # a peer may have left this group only; its death is found through the world
        return board.gone or gone(group.world, group.world_ranks[rank])
    if board.gone or not board.pid:
        return board.gone
    if rank not in group.pidfds:
        try:
            fd = os.pidfd_open(board.pid)
        except ProcessLookupError:
            return board.gone or Departure(DepartureKind.DIED, "died")
        if group.pidfds.setdefault(rank, fd) != fd:
            os.close(fd)  # another thread, in a call of another sub-group, was faster
    poll = select.poll()
    poll.register(group.pidfds[rank], select.POLLIN)
    if not poll.poll(0):
        return None
    until = time.monotonic() + _WORDS_S
    while not board.gone and time.monotonic() < until:
        time.sleep(0.002)
    return board.gone or Departure(DepartureKind.DIED, "died")
