"""Where a group's shared memory has what: the same for a whole arena and for the part of one that a sub-group has.

    control lines | boards | mail words | staging of rank 0, 1, ...

The control lines are what kernels wait for; a board is where a rank leaves words for its peers when something is wrong;
a mail word says where, in the sender's heap, the messages of one rank to another lie;
staging holds what a rank publishes of private tensors.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from ..errors import ArgumentError
from ..records import DepartureKind
from .board import BOARD_BYTES, Board

__all__ = ["LINE", "PAGE", "Layout", "whole_pages"]

PAGE = 4096
LINE = 128
"""Bytes between two control lines: two cache lines, because processors fetch pairs."""


class Layout:
    """The shared memory of `size` ranks, from byte `start` of a mapping on; staging halves have `half` bytes.

    map, base: the mapping, and where it begins. heaps: where each rank's heap of `heap_bytes` begins. neighbours: how
    many ranks share the host. head: the bytes before the staging areas. end: the byte behind them.
    """

    heap_bytes: int
    neighbours: int

    def __init__(self, size: int, half: int, start: int = 0) -> None:
        self.size, self.half, self.start = size, half, start
        self.map: mmap.mmap | None = None
        self.base = 0
        self.heaps: Sequence[int] = ()
        self._boards = start + whole_pages(size * LINE)
        self._mail = self._boards + size * BOARD_BYTES
        self._staging = self._mail + whole_pages(8 * size * size)
        self.head = self._staging - start
        # An odd number of pages between equal places of two ranks keeps them out of each other's cache sets.
        self.stage_stride = whole_pages(2 * half) + PAGE
        self.end = self._staging + size * self.stage_stride

    def control(self, rank: int) -> int:
        """The address of a rank's control line."""
        return self.base + self.start + rank * LINE

    def mail(self, sender: int, receiver: int) -> int:
        """The address of the word that leads to what one rank sends to another; it holds 0 until there is something."""
        return self.base + self._mail + 8 * (receiver * self.size + sender)

    def stage(self, rank: int) -> int:
        """The address of a rank's staging area: two halves."""
        return self.base + self._staging + rank * self.stage_stride

    def heap(self, rank: int) -> int:
        """The address of a rank's heap."""
        return self.heaps[rank]

    def board(self, rank: int) -> Board:
        """The board of a rank."""
        if self.map is None:
            raise ArgumentError("this arena has been closed")
        at = self._boards + rank * BOARD_BYTES
        return Board(memoryview(self.map)[at : at + BOARD_BYTES])

    def mark_gone(self, rank: int, how: DepartureKind, words: str) -> None:
        """Tell whoever waits for this rank that it will not come any more, and how it went (`was killed by ...`)."""
        self.board(rank).set_gone(how, words)

    def mark_back(self, rank: int) -> None:
        """Take that back: the rank takes part again."""
        self.board(rank).set_back()


def whole_pages(nbytes: int) -> int:
    """The bytes of the pages that hold so many bytes."""
    return -(-nbytes // PAGE) * PAGE
