"""Whether the members of a group are still there: by their boards, and by the system."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Sequence

from ...base.records import Departure, DepartureKind
from ...engine.memory.arena import Layout
from ...engine.memory.board import Board
from ...engine.process.alive import PARENT_S, ending_in_words, exit_status, has_ended, lives, watch_process


class _Descriptor:
    """A file descriptor that is closed when nobody uses it any more: no thread may look at a number that has been
    closed, and perhaps means another file by now. In a forked process, too, it may mean another one.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self._pid = fd, os.getpid()

    def __del__(self, close: Callable[[int], None] = os.close, getpid: Callable[[], int] = os.getpid) -> None:
        if getpid() == self._pid:
            close(self.fd)


class RankLiveness:
    """The members of a group, as one of them sees them.

    The death of a sub-group's member is found through the world: a peer may leave only the sub-group. For members on
    other hosts, this host's sentinel writes on their boards how they have gone.

    world: the liveness of all ranks, if this is a sub-group.
    world_ranks: the members as ranks of the world.
    here: the members on this host; None: all.
    far_left: how a rank of the world on another host has gone for good.
    """

    def __init__(
        self,
        layout: Layout,
        world: RankLiveness | None = None,
        world_ranks: Sequence[int] = (),
        here: Container[int] | None = None,
        far_left: Callable[[int], Departure | None] = lambda _: None,
    ) -> None:
        self._layout, self._world, self._world_ranks = layout, world, world_ranks
        self._here = range(layout.size) if here is None else here
        self._far_left = far_left
        self._pidfds: dict[tuple[int, int], _Descriptor] = {}  # (pid, start time) of a process -> its pidfd

    def gone(self, rank: int) -> Departure | None:
        """How a member has gone, or has aborted this group; None if it is still there."""
        return self._layout.board(rank).gone or self.left(rank)

    def left(self, rank: int) -> Departure | None:
        """How a member has gone for good. A member that has aborted the group may still be there, and join another."""
        board = self._layout.board(rank)
        gone = board.gone  # read once: while a record is written again, it is not there
        if gone and gone.how is not DepartureKind.ABORTED:
            return gone
        if rank not in self._here:
            world_rank = self._world_ranks[rank] if self._world is not None else rank
            return self._far_left(world_rank) or (self._world.left(world_rank) if self._world is not None else None)
        return self._death(board) if self._world is None else self._world.left(self._world_ranks[rank])

    def _death(self, board: Board) -> Departure | None:
        """How the process of a board has ended; None if it is there, or has not come yet."""
        if not board.pid or not self._has_died(board):
            return None
        watched = self._pidfds.get((board.pid, board.ticks))
        status = exit_status(board.pid, board.ticks, watched.fd if watched else None)
        until = time.monotonic() + PARENT_S
        while status is None and board.parent_tells_end and not board.gone and time.monotonic() < until:
            time.sleep(0.002)
        words = "died" if status is None else ending_in_words(status)
        return board.gone or Departure(DepartureKind.DIED, words)

    def close(self) -> None:
        """Close the descriptors of processes."""
        self._pidfds = {}

    def _has_died(self, board: Board) -> bool:
        process = board.pid, board.ticks
        watched = self._pidfds.get(process)
        if watched is None:
            try:
                fd = watch_process(*process)
            except OSError:  # no file descriptor is free
                return not lives(*process)
            if fd is None:
                return True
            watched = self._pidfds.setdefault(process, _Descriptor(fd))  # another thread may be faster
        return has_ended(watched.fd)
