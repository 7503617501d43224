"""Has a peer gone? Asked of its board, and of the system."""

from __future__ import annotations

import os
import select
import time

from ..membership.group import Group

__all__ = ["gone"]

_WORDS_S = 0.1
"""How long after a death its cause (such as a signal number) may arrive from whoever started the process."""


def gone(group: Group, rank: int) -> str:
    """Why a peer will not come any more, or "" for all that is known it will."""
    board = group.host.arena.board(rank)
    if board.gone or not board.pid:
        return board.gone
    if rank not in group.pidfds:
        try:
            group.pidfds[rank] = os.pidfd_open(board.pid)
        except ProcessLookupError:
            return board.gone or "died"
    poll = select.poll()
    poll.register(group.pidfds[rank], select.POLLIN)
    if not poll.poll(0):
        return ""
    until = time.monotonic() + _WORDS_S
    while not board.gone and time.monotonic() < until:
        time.sleep(0.002)
    return board.gone or "died"
