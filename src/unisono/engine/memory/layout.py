"""The layout of a group's shared memory, in an arena or in a sub-group's region of one.

    control lines | boards | mail words | logs of calls | staging of rank 0, 1, ...

Kernels wait for words of the control lines. A board tells peers what went wrong on a rank. A mail word is an offset in
the sender's heap: there is the ring for messages from one rank to another. A log has a rank's last calls. Staging holds
copies of private tensors for peers.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from ...base.errors import ArgumentError
from ..logs.call_log import CALL_LOG_BYTES, CallLog
from .board import BOARD_BYTES, Board

PAGE = 4096
LINE = 128
"""Bytes of a control line: two cache lines, because processors fetch pairs."""


class Layout:
    """The shared memory of `size` ranks, from byte `start` of a mapping on; a staging half has `half` bytes.

    map, base: the mapping and its address.
    heaps: the address of each rank's heap of `heap_bytes` bytes.
    neighbours: the number of ranks on the machine.
    head: bytes before the staging areas.
    end: the offset behind them.
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
        self._logs = self._mail + whole_pages(8 * size * size)
        self._staging = self._logs + whole_pages(size * CALL_LOG_BYTES)
        self.head = self._staging - start
        # An odd number of pages from one rank to the next maps their staging areas to different cache sets.
        self.stage_stride = whole_pages(2 * half) + PAGE
        self.end = self._staging + size * self.stage_stride

    def control(self, rank: int) -> int:
        """The address of a rank's control line."""
        return self.base + self.start + rank * LINE

    def awaits_mail(self, rank: int) -> int:
        """The address of the word that says that a rank sleeps until a message comes, or is taken."""
        from ..compile.program import LineWord  # which imports numpy: a sentinel does without

        return self.control(rank) + 8 * LineWord.AWAITS_MAIL

    def mail(self, sender: int, receiver: int) -> int:
        """The address of the mail word from one rank to another. The word is 0 until the first message."""
        return self.base + self._mail + 8 * (receiver * self.size + sender)

    def log_address(self, rank: int) -> int:
        return self.base + self._logs + rank * CALL_LOG_BYTES

    def stage(self, rank: int) -> int:
        """The address of a rank's staging area, which has two halves."""
        return self.base + self._staging + rank * self.stage_stride

    def heap(self, rank: int) -> int:
        return self.heaps[rank]

    def board(self, rank: int) -> Board:
        return Board(self._memory(self._boards + rank * BOARD_BYTES, BOARD_BYTES))

    def log(self, rank: int) -> CallLog:
        return CallLog(self._memory(self._logs + rank * CALL_LOG_BYTES, CALL_LOG_BYTES))

    def _memory(self, start: int, nbytes: int) -> memoryview:
        if self.map is None:
            raise ArgumentError("this arena has been closed")
        return memoryview(self.map)[start : start + nbytes]


def whole_pages(nbytes: int) -> int:
    """Round up to whole pages."""
    return -(-nbytes // PAGE) * PAGE
