"""The shared memory of a host, as its sentinel sees it: only control lines and boards of its groups."""

import ctypes
from mmap import mmap
from typing import NamedTuple

from ...base.records import Departure, DepartureKind
from ...engine.memory.board import BOARD_BYTES, LINE, NEWS, PAGE, Board, first_board
from ...engine.memory_order import order

_NUMBERS = slice(1, 3)
"""The words of a control line with the numbers of calls. The other words belong to these calls."""


class _Pages(NamedTuple):
    """The control line and the board of one member."""

    line: memoryview
    board: Board

    def read(self) -> bytes:
        """Line and board as they were at one moment."""
        line = bytes(self.line)
        while True:
            order()
            board = self.board.image()
            if (again := bytes(self.line)) == line:
                return line + board
            line = again  # its owner writes just now

    def write(self, image: bytes, *, keep_gone: bool) -> None:
        """Write the board's calls first, then the line, its progress last, then how the rank has gone, which is about
        its last call.

        keep_gone: this host knows how the rank has gone for good. If the rank aborted the group before, the board says
        this instead, also where the departure was heard of first.
        """
        words, new = self.line.cast("Q"), memoryview(image[:LINE]).cast("Q")
        self.board.copy(image[LINE:], keep_gone=True)
        for part in (slice(_NUMBERS.stop, None), _NUMBERS, slice(0, _NUMBERS.start)):
            if words[part] != new[part]:
                order()
                words[part] = new[part]
        if not keep_gone or self._aborts(Board(memoryview(image[LINE:]))):
            self.board.copy(image[LINE:])

    def _aborts(self, said: Board) -> bool:
        """Does a newer board say that the rank has aborted the group, in the present run?"""
        return said.gone is not None and said.gone.how is DepartureKind.ABORTED and said.run == self.board.run


class Regions:
    """The regions of groups in an arena, by the number of the group.

    memory: the arena, as `engine.memory.arena` describes it; this file imports only what it needs of it.
    start, size: where the region of the world begins, and its number of ranks.
    """

    def __init__(self, memory: mmap, start: int, size: int) -> None:
        self._bytes, self._start, self._news = len(memory), start, ctypes.c_uint64.from_buffer(memory, NEWS)
        self._memory = memoryview(memory)
        self._regions: dict[int, tuple[int, list[_Pages]]] = {}
        self._world = self._members(start, size)

    def add(self, gid: int, start: int, size: int) -> None:
        """A group of `size` ranks has a region at `start`. Raises ValueError if that is impossible."""
        self._regions[gid] = start, self._members(start, size)

    def _members(self, start: int, size: int) -> list[_Pages]:
        boards = first_board(start, size)
        if start % PAGE or not self._start <= start <= boards <= self._bytes - size * BOARD_BYTES:
            raise ValueError(f"a region of {size} ranks cannot begin at byte {start}")
        lines, pages = self._memory[start:boards], self._memory[boards:]
        return [_Pages(lines[k * LINE :][:LINE], Board(pages[k * BOARD_BYTES :][:BOARD_BYTES])) for k in range(size)]

    def remove(self, gid: int) -> None:
        """Touch the region no more."""
        del self._regions[gid]

    def read(self, gid: int, member: int) -> bytes:
        """A member's control line and board, as they are now."""
        return self._regions[gid][1][member].read()

    def write(self, gid: int, member: int, image: bytes, *, keep_gone: bool) -> None:
        """Make a member's control line and board equal to the image. keep_gone: keep how it has left the world."""
        start, members = self._regions[gid]
        members[member].write(image, keep_gone=keep_gone and start == self._start)

    def depart(self, rank: int, how: int, words: str) -> None:
        """Write on a rank's board of the world how it has gone, if the board does not say so yet. Then count it, if it
        has not gone in order: a rank that sees the count finds the departure on the board.
        """
        gone = Departure(DepartureKind(how), words)
        self._world[rank].board.set_gone(*gone)
        if not gone.in_order:
            self.count_news()

    def count_news(self) -> None:
        """Let waiting ranks of this host look at the boards, which have news already."""
        order()
        self._news.value += 1

    def departure(self, rank: int) -> Departure | None:
        """How a rank has left the world, by its board."""
        return self._world[rank].board.gone

    def sight(self, rank: int) -> str:
        """What a rank of this host does now, and its stacks; see `sights`."""
        from .sights import sight  # imports some modules that a sentinel starts without

        board = self._world[rank].board
        return sight(board.pid, board.ticks, board.stacks)

    def parent_tells_end(self, rank: int) -> bool:
        """Will the rank's parent write how the rank has gone, if the rank cannot?"""
        return bool(self._world[rank].board.parent_tells_end)
