"""The shared memory of a sub-group: a region of the world's arena, which all ranks have mapped already.

The region comes from the heap of the sub-group's first member, the lender. A member that leaves says so on its board in
the region and does not wait. When all members have left or died, each drops what it kept for the others, such as
messages, and says so, too; then the lender frees the region. These steps are made when groups are made and closed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence

from ..records import DepartureKind
from .arena import Arena
from .board import Board
from .heap import Heap
from .layout import Layout

__all__ = ["Lender", "SubArena"]


class SubArena(Layout):
    """The region of an arena, from byte `start` on, of a sub-group. members: its ranks, in order.

    It has no heaps of its own: a rank's shared tensors work in all its groups.
    """

    def __init__(self, lender: Lender, start: int, members: Sequence[int], rank: int) -> None:
        arena = lender.arena
        super().__init__(len(members), arena.half, start)
        self.map, self.base, self.heap_bytes, self.neighbours = arena.map, arena.base, arena.heap_bytes, arena.size
        self.heaps = [arena.heap(member) for member in members]
        self.shape = arena.shape
        self.lender, self.members, self.rank = lender, tuple(members), rank
        self._kept: object = None

    def leave(self, kept: object = None) -> None:
        """Stop using this memory. kept: an object that must live until all members have left.

        Takes no lock, because the garbage collector may call this anywhere.
        """
        self._kept = kept
        self.board(self.rank).set_gone(DepartureKind.LEFT, "left the group")
        if not self.settle():
            self.lender.left.append(self)

    def settle(self) -> bool:
        """Free what can be freed by now. True if this rank has nothing left to do for this region."""
        mine = self.board(self.rank)
        if not mine.let_go and (self._kept is None or self._all(lambda board: board.gone is not None)):
            self._kept = None
            mine.set_let_go()
        if self.rank == 0 and mine.let_go and self._all(lambda board: board.let_go):
            self.lender.take_back(self)
            return True
        return self.rank > 0 and mine.let_go

    def _all(self, done: Callable[[Board], bool]) -> bool:
        """Is this true of the boards of all living members?"""
        return all(done(board) or not _exists(board.pid) for board in map(self.board, range(self.size)))


class Lender:
    """The regions that a rank has lent or uses. left: those that it has left and not settled yet."""

    def __init__(self, arena: Arena, heap: Heap) -> None:
        self.arena, self.heap = arena, heap
        self.left: deque[SubArena] = deque()

    def lend(self, members: Sequence[int]) -> SubArena:
        """Allocate zeroed memory for a group of these ranks, of which this is the first. Raises OutOfMemory."""
        needs = Layout(len(members), self.arena.half)
        sub = SubArena(self, self.heap.lend(needs.end, needs.head), members, 0)
        for rank, member in enumerate(members):
            there = self.arena.board(member)
            sub.board(rank).set_process(there.pid, there.ticks)  # it may die before it can say so itself
        return sub

    def take_back(self, sub: SubArena) -> None:
        """Free a region that no rank uses any more."""
        self.heap.take_back(sub.start, sub.end - sub.start)

    def collect(self) -> None:
        """Settle the regions that this rank has left."""
        for _ in range(len(self.left)):
            try:
                sub = self.left.popleft()
            except IndexError:
                return  # another thread collects, too
            if not sub.settle():
                self.left.append(sub)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False  # or its number has gone to another user's process
    return True
