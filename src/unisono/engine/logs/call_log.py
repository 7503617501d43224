"""The last calls of one rank in one group: a ring of entries, which the kernel writes and any process may read.

The call of number n has entry n modulo the length, so the entries of all ranks are aligned by number. An entry says
when the rank has entered the call and when it has left it, by the processor's cycle counter, and the number of the note
that says what was called (`plan_registry`). Nothing else is written while a call runs.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

CALLS = 256
"""The length of a log in shared memory, a power of two."""


class LogWord(IntEnum):
    """The words of a call in a log. Times are in cycles of the processor's counter."""

    NUMBER = 0  # of the call: written last, when the rank begins it
    NOTE = 1  # the number of the note that says what was called; more where it ran in the background
    ENTERED = 2
    LEFT = 3  # not later than ENTERED: left over from an earlier call, and the rank is in this one
    WORDS = 4


_ENTRY = struct.Struct(f"<{LogWord.WORDS}q")


def log_bytes(calls: int) -> int:
    """The bytes of a log of this length."""
    return calls * _ENTRY.size


CALL_LOG_BYTES = log_bytes(CALLS)


_BACKGROUND = 1 << 62


class LoggedCall(NamedTuple):
    """A call of a rank.

    note: the number of the note that says what was called.
    entered: when the rank entered the call, in cycles.
    left: when the rank left it; 0: it is still in the call.
    background: another thread than the caller's has made the call.
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
        self._memory = memory
        self.calls = len(memory) // _ENTRY.size

    def read(self) -> list[LoggedCall]:
        """The calls, oldest first. An entry that is being written just now is left out."""
        seen = memoryview(bytes(self._memory))
        numbers, again = self._numbers(seen), self._numbers(self._memory)
        # The rank may overwrite the oldest entry meanwhile, and writes its number last.
        oldest = max(0, max(numbers) - self.calls + 1)
        whole = [at for at, number in enumerate(numbers) if number > oldest and number == again[at]]
        return sorted(LoggedCall.of(*_ENTRY.unpack_from(seen, at * _ENTRY.size)) for at in whole)

    @property
    def newest(self) -> int:
        """The number of the call that the rank has entered last; 0 before its first."""
        return max(self._numbers(self._memory))

    def latest_notes(self) -> set[int]:
        """The notes of the last calls, as many as a log in shared memory has."""
        words = self._memory.cast("B").cast("q")
        newest = self.newest
        first = max(0, newest - CALLS + 1)
        return {
            words[number % self.calls * LogWord.WORDS + LogWord.NOTE] & ~_BACKGROUND
            for number in range(first, newest + 1)
        }

    @staticmethod
    def _numbers(memory: memoryview) -> list[int]:
        return memory.cast("B").cast("q")[LogWord.NUMBER :: LogWord.WORDS].tolist()

    def latest(self) -> LoggedCall | None:
        """The call that the rank has entered last; None before its first."""
        number = self.newest
        if not number:
            return None
        at = number % self.calls * _ENTRY.size
        return LoggedCall.of(*_ENTRY.unpack(self._memory[at : at + _ENTRY.size]))

    def enter(self, number: int, note: int, cycles: int) -> None:
        """Note that the rank enters a call over several hosts: the kernel makes only a part of such a call."""
        at = number % self.calls * _ENTRY.size
        words = self._memory[at : at + _ENTRY.size].cast("q")
        words[LogWord.NOTE], words[LogWord.ENTERED] = note, cycles
        words[LogWord.NUMBER] = number

    def mark_background(self, number: int) -> None:
        """Note that another thread than the caller's has made this call, which has ended."""
        at = number % self.calls * _ENTRY.size
        words = self._memory[at : at + _ENTRY.size].cast("q")
        if words[LogWord.NUMBER] == number:
            words[LogWord.NOTE] |= _BACKGROUND

    def leave(self, number: int, cycles: int) -> None:
        """Note that the rank leaves a call, if it has entered it."""
        at = number % self.calls * _ENTRY.size
        words = self._memory[at : at + _ENTRY.size].cast("q")
        if words[LogWord.NUMBER] == number:
            words[LogWord.LEFT] = cycles
