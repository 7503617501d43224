"""The shared memory of a host, as its sentinel sees it: only control lines and boards of its groups."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.records import Departure, DepartureKind
from ...engine.memory.arena import LINE, PAGE, Arena, Layout
from ...engine.memory.board import Board

_NUMBERS = slice(1, 3)
"""The words of a control line with the numbers of calls. The other words belong to these calls."""


@dataclass(frozen=True)
class _Pages:
    """The control line and the board of one member."""

    line: memoryview
    board: Board

    def read(self) -> bytes:
        """Line and board as they were at one moment."""
        line, board = bytes(self.line), self.board.image()
        while (again := bytes(self.line)) != line:  # its owner writes just now
            line, board = again, self.board.image()
        return line + board

    def write(self, image: bytes, *, keep_gone: bool) -> None:
        """Write the board's calls first, then the line, then how the rank has gone, which is about its last call."""
        words, new = self.line.cast("Q"), memoryview(image[:LINE]).cast("Q")
        self.board.copy(image[LINE:], keep_gone=True)
        for part in (slice(_NUMBERS.stop, None), slice(0, _NUMBERS.start), _NUMBERS):
            if words[part] != new[part]:
                words[part] = new[part]
        if not keep_gone:
            self.board.copy(image[LINE:])


class Regions:
    """The regions of groups in an arena, by the number of the group."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._departures = arena, arena.departures
        self._regions: dict[int, tuple[int, list[_Pages]]] = {}

    def add(self, gid: int, start: int, size: int) -> None:
        """A group of `size` ranks has a region at `start`. Raises ValueError if that is impossible."""
        layout = Layout(size, self._arena.half, start)
        if start % PAGE or not self._arena.start <= start <= self._arena.bytes - layout.head:
            raise ValueError(f"no region of {size} ranks begins at byte {start}")
        layout.map = self._arena.map
        lines = memoryview(layout.map)[start:]  # type: ignore[arg-type]  # it is open
        self._regions[gid] = start, [_Pages(lines[k * LINE :][:LINE], layout.board(k)) for k in range(size)]

    def remove(self, gid: int) -> None:
        """Touch the region no more."""
        del self._regions[gid]

    def read(self, gid: int, member: int) -> bytes:
        """A member's control line and board, as they are now."""
        return self._regions[gid][1][member].read()

    def write(self, gid: int, member: int, image: bytes, *, keep_gone: bool) -> None:
        """Make a member's control line and board equal to the image. keep_gone: keep how it has left the world."""
        start, members = self._regions[gid]
        members[member].write(image, keep_gone=keep_gone and start == self._arena.start)

    def depart(self, rank: int, how: int, words: str) -> None:
        """Write on a rank's board of the world how it has gone, if the board does not say so yet. Then count it, if it
        has not gone in order: a rank that sees the count finds the departure on the board.
        """
        gone = Departure(DepartureKind(how), words)
        self._arena.board(rank).set_gone(*gone)
        if not gone.in_order:
            self._departures.value += 1

    def departure(self, rank: int) -> Departure | None:
        """How a rank has left the world, by its board."""
        return self._arena.board(rank).gone

    def parent_tells_end(self, rank: int) -> bool:
        """Will the rank's parent write how the rank has gone, if the rank cannot?"""
        return self._arena.board(rank).parent_tells_end
