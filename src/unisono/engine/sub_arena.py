"""The shared memory of sub-groups: regions of an arena, which all its ranks have mapped already.

The heap of a sub-group's first member lends the region. Members leave one by one, and wait for nobody: a member says on
its board in the region that it is gone. Once all are gone (or dead), each drops what it kept for the others, such as
messages, and lets the region go; then its lender takes it back. All this is looked after when groups come and go.
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
    """The part of an arena, from byte `start` on, that belongs to some of its ranks: the members, in their order.

    It has no heaps of its own: tensors in shared memory serve all groups of their rank.
    """

    def __init__(self, lender: Lender, start: int, members: Sequence[int], rank: int) -> None:
        arena = lender.arena
        super().__init__(len(members), arena.half, start)
        self.map, self.base, self.heap_bytes, self.neighbours = arena.map, arena.base, arena.heap_bytes, arena.size
        self.heaps = [arena.heap(member) for member in members]
        self.lender, self.members, self.rank = lender, tuple(members), rank
        self._kept: object = None

    def leave(self, kept: object = None) -> None:
        """Touch this memory no more. kept: what must live until the others have left, too.

        Takes no lock: the garbage collector may call this anywhere.
        """
        self._kept = kept
        self.mark_gone(self.rank, DepartureKind.LEFT, "left the group")
        if not self.settle():
            self.lender.left.append(self)

    def settle(self) -> bool:
        """Let go what may go by now. True: this rank has nothing more to do here."""
        mine = self.board(self.rank)
        if not mine.let_go and (self._kept is None or self._all(lambda board: board.gone is not None)):
            self._kept = None
            mine.set_let_go()
        if self.rank == 0 and mine.let_go and self._all(lambda board: board.let_go):
            self.lender.take_back(self)
            return True
        return self.rank > 0 and mine.let_go

    def _all(self, done: Callable[[Board], bool]) -> bool:
        """Is this so on the boards of all members that live?"""
        return all(done(board) or not _exists(board.pid) for board in map(self.board, range(self.size)))


class Lender:
    """One rank's side of all that is lent in its arena. `left`: where it has left, but is not through yet."""

    def __init__(self, arena: Arena, heap: Heap) -> None:
        self.arena, self.heap = arena, heap
        self.left: deque[SubArena] = deque()

    def lend(self, members: Sequence[int]) -> SubArena:
        """Memory that reads zero, for a group of these ranks, of which this is the first. Raises OutOfMemory."""
        needs = Layout(len(members), self.arena.half)
        sub = SubArena(self, self.heap.lend(needs.end, needs.head), members, 0)
        for rank, member in enumerate(members):
            sub.board(rank).pid = self.arena.board(member).pid  # it may die before it can say so itself
        return sub

    def take_back(self, sub: SubArena) -> None:
        """Take memory back that nobody touches any more."""
        self.heap.take_back(sub.start, sub.end - sub.start)

    def collect(self) -> None:
        """Settle what has been left."""
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
