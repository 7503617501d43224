"""What one rank logs for others to read: its last calls.

A log is a ring of entries in memory that any process may read. A writer writes the number of an entry last; when
what is logged has ended, it writes the end. A reader leaves out the entry that the writer may overwrite meanwhile, and
the next one: where a processor does not keep the order of writes (`engine.memory_order`), a writer may be seen to
overwrite it before it has published the last number.

There is one log for each group. The kernel writes it. The call of number n has entry n modulo the length, so the
entries of all ranks are aligned by number. An entry says when the rank has entered the call and when it has left it, by
the processor's cycle counter, and the number of the note that says what was called (`plan_registry`). Nothing else is
written while a call runs.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from ..memory_order import order

CALLS = 256
"""The length of a log in shared memory, a power of two."""


class LogWord(IntEnum):
    """The words of a call in a log. Times are in cycles of the processor's counter."""

    NUMBER = 0  # of the call: written last, when the rank begins it
    NOTE = 1  # the number of the note that says what was called; more where it ran in the background
    ENTERED = 2
    LEFT = 3  # not later than ENTERED: left over from an earlier call, and the rank is in this one
    WORDS = 4


_CALL = struct.Struct(f"<{LogWord.WORDS}q")
_NOTE, _ENTERED, _LEFT, _WORDS = map(int, (LogWord.NOTE, LogWord.ENTERED, LogWord.LEFT, LogWord.WORDS))
"""The same words as plain integers, which Python adds faster. NUMBER is the first."""


def log_bytes(calls: int) -> int:
    return calls * _CALL.size


CALL_LOG_BYTES = log_bytes(CALLS)

_BACKGROUND = 1 << 62


class LoggedCall(NamedTuple):
    """A call of a rank.

    note: the number of the note that says what was called.
    entered: when the rank entered the call, in cycles.
    left: when the rank left it; 0: it is still in the call.
    background: a background thread has made the call.
    """

    number: int
    note: int
    entered: int
    left: int
    background: bool = False

    @classmethod
    def of(cls, number: int, note: int, entered: int, left: int) -> "LoggedCall":
        return cls(number, note & ~_BACKGROUND, entered, left if left > entered else 0, bool(note & _BACKGROUND))


class CallLog:
    """The log in this memory. One rank writes."""

    def __init__(self, memory: memoryview) -> None:
        self._memory, self._words = memory, memory.cast("B").cast("q")
        self.calls = len(memory) // _CALL.size

    def read(self) -> list[LoggedCall]:
        """The calls, oldest first. An entry that is being written just now is left out."""
        before, left = self._column(LogWord.NUMBER), self._column(LogWord.LEFT)  # ends before what is written earlier
        order()
        seen = bytes(self._memory)
        order()
        after = self._column(LogWord.NUMBER)
        oldest = max(0, max(after) - len(after) + 2)
        return sorted(
            LoggedCall.of(number, note, entered, ended)
            for one, ended, other, (number, note, entered, _) in zip(
                before, left, after, _CALL.iter_unpack(seen), strict=True
            )
            if number > oldest and one == number == other
        )

    def _column(self, word: LogWord) -> list[int]:
        """This word of all entries."""
        column: list[int] = self._words[word :: LogWord.WORDS].tolist()
        return column

    @property
    def newest(self) -> int:
        """The number of the call that the rank has entered last; 0 before its first."""
        return max(self._column(LogWord.NUMBER))

    def latest_notes(self) -> set[int]:
        """The notes of the last calls, as many as a log in shared memory has."""
        words = self._words
        newest = self.newest
        first = max(0, newest - CALLS + 1)
        return {
            words[number % self.calls * LogWord.WORDS + LogWord.NOTE] & ~_BACKGROUND
            for number in range(first, newest + 1)
        }

    def enter(self, number: int, note: int, cycles: int) -> None:
        """Note that the rank enters a call that the kernel does not make."""
        words, at = self._words, number % self.calls * _WORDS
        words[at + _NOTE], words[at + _ENTERED] = note, cycles
        order()
        words[at] = number

    def mark_background(self, number: int) -> None:
        """Note that a background thread has made this call, which has ended."""
        words, at = self._words, number % self.calls * _WORDS
        if words[at] == number:
            order()
            words[at + _NOTE] |= _BACKGROUND

    def leave(self, number: int, cycles: int) -> None:
        """Note that the rank leaves a call, if it has entered it."""
        words, at = self._words, number % self.calls * _WORDS
        if words[at] == number:
            order()
            words[at + _LEFT] = cycles
