"""When the rows of a rank's programs began and ended: a ring of entries, which the recording kernel writes.

Only a trace that asks for rounds has one (`Host.log_rows_to`). The usual kernel knows nothing of it.
"""

from enum import IntEnum
from mmap import mmap
from typing import NamedTuple

import numpy as np

REUSE = -1
"""Stands for a row: before the first row of a segment, a rank waits until no rank reads its staging half any more."""


class RowLogWord(IntEnum):
    """The words of an entry. Times are in cycles of the processor's counter."""

    NUMBER = 0  # of the call
    SEGMENT = 1  # counted over all calls
    ROW = 2  # its index in the program, or REUSE
    BEGAN = 3
    ENDED = 4  # not later than BEGAN: left over from an earlier row, and the rank is at this one
    WORDS = 5


def row_log_bytes(rows: int) -> int:
    """The bytes of a log of this length."""
    return 8 * RowLogWord.WORDS * rows


class LoggedRow(NamedTuple):
    """A row of the call with this number. began, ended: in cycles; ended is 0 while the rank is at this row."""

    number: int
    segment: int
    row: int
    began: int
    ended: int


class RowWriter:
    """Logs the rows that no kernel runs, of a group over several hosts. For one thread at a time."""

    def __init__(self, memory: mmap) -> None:
        self._words = memoryview(memory).cast("q")
        self._count, self._at = len(memory) // row_log_bytes(1), -1
        self._last: tuple[int, ...] = ()

    def write(self, row: LoggedRow) -> None:
        """Log a row. If it is the same row as in the last call, the rank is still at it."""
        if row[: RowLogWord.BEGAN] != self._last:
            self._at = (self._at + 1) % self._count
            first, self._last = RowLogWord.WORDS * self._at, row[: RowLogWord.BEGAN]
            for word, value in enumerate(row):
                self._words[first + word] = value
        self._words[RowLogWord.WORDS * self._at + RowLogWord.ENDED] = row.ended


class RowLog:
    """The log in this memory."""

    def __init__(self, memory: memoryview) -> None:
        self._words = np.frombuffer(memory, np.int64).reshape(-1, RowLogWord.WORDS)
        self.rows = len(self._words)

    def read(self) -> list[LoggedRow]:
        """The rows of complete calls, in order of time. Segments are counted from 0 in each call."""
        words = self._words[self._words[:, RowLogWord.NUMBER] > 0]
        words = words[np.argsort(words[:, RowLogWord.BEGAN])]
        found = [LoggedRow(*row) for row in words.tolist()]
        if len(found) == self.rows:  # the ring may have gone round, and have lost rows of the first call
            found = [row for row in found if row.number != found[0].number]
        first: dict[int, int] = {}
        for row in found:
            first[row.number] = min(row.segment, first.get(row.number, row.segment))
        return [
            row._replace(segment=row.segment - first[row.number], ended=row.ended if row.ended >= row.began else 0)
            for row in found
        ]
