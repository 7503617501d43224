"""The shared memory of a host, as its sentinel sees it: only control lines and boards of its groups."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

from ...base.linux import SET_ROBUST_LIST
from ...base.records import Departure, DepartureKind
from ...engine.memory.arena import LINE, PAGE, Arena, Layout
from ...engine.memory.board import Board
from ...engine.memory_order import order

_NUMBERS = slice(1, 3)
"""The words of a control line with the numbers of calls. The other words belong to these calls."""

_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class _Pages:
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
        """Write the board's calls first, then the line, then how the rank has gone, which is about its last call."""
        words, new = self.line.cast("Q"), memoryview(image[:LINE]).cast("Q")
        self.board.copy(image[LINE:], keep_gone=True)
        for part in (slice(_NUMBERS.stop, None), slice(0, _NUMBERS.start), _NUMBERS):
            if words[part] != new[part]:
                order()
                words[part] = new[part]
        if not keep_gone:
            self.board.copy(image[LINE:])


class Regions:
    """The regions of groups in an arena, by the number of the group."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._news = arena, arena.news
        self._regions: dict[int, tuple[int, list[_Pages]]] = {}

    def count_own_end(self) -> None:
        """Let the system count the end of this thread as news, also if it is killed.

        A robust futex has the number of its owner's thread. When the owner ends, Linux writes FUTEX_OWNER_DIED there,
        which is larger than any such number. If the system refuses, ranks learn of the end when they ask.
        """
        upper = ctypes.addressof(self._news) + 4
        ctypes.c_uint32.from_address(upper).value = threading.get_native_id()
        self._robust_list = head = (ctypes.c_int64 * 4)()  # Linux reads it: the entry, the word's place from there, 0
        at = ctypes.addressof(head)
        head[:] = [at + 24, upper - (at + 24), 0, at]  # and the entry, which leads back to the head
        _LIBC.syscall(SET_ROBUST_LIST, ctypes.c_void_p(at), ctypes.c_size_t(24))

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
            self.count_news()

    def count_news(self) -> None:
        """Let waiting ranks of this host look at the boards, which have news already."""
        order()
        self._news.value += 1

    def departure(self, rank: int) -> Departure | None:
        """How a rank has left the world, by its board."""
        return self._arena.board(rank).gone

    def parent_tells_end(self, rank: int) -> bool:
        """Will the rank's parent write how the rank has gone, if the rank cannot?"""
        return self._arena.board(rank).parent_tells_end
