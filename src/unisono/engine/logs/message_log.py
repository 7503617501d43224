"""The last messages of one rank, in all its groups: a ring of entries that any process may read.

The rank logs a message when it is done. It logs a slow one earlier: when it first checks whether its peers live.
"""

import itertools
import struct
from enum import IntEnum
from typing import NamedTuple

MESSAGES = 256
"""The length of the log in shared memory."""


class MessageWord(IntEnum):
    """The words of a message in a log. Times are monotonic nanoseconds."""

    GROUP = 0  # where its memory begins in the arena
    TAG = 1
    ENTERED = 2
    PEER = 3  # twice the peer's rank in the group, -1: any; plus 1 for a receive
    NBYTES = 4
    PLACE = 5  # 1 for the first message from this sender to this receiver, then 2, ...; 0: not known yet
    LEFT = 6  # 0: it goes on
    NUMBER = 7  # counts the rank's messages; written last


_ENTRY = struct.Struct(f"<{len(MessageWord)}q")
_END = struct.Struct("<4q")
_END_AT, _NUMBER_AT = 8 * MessageWord.PEER, 8 * MessageWord.NUMBER
_NUMBER = struct.Struct("<q")


def message_log_bytes(messages: int) -> int:
    """The bytes of a log of this length."""
    return messages * _ENTRY.size


MESSAGE_LOG_BYTES = message_log_bytes(MESSAGES)


class LoggedMessage(NamedTuple):
    """A message as one of its two ranks has seen it. left_ns: 0 while it goes on. Other fields: see `MessageWord`."""

    number: int
    group: int
    is_receive: bool
    peer: int
    tag: int
    nbytes: int
    place: int
    entered_ns: int
    left_ns: int


class MessageLog:
    """The log in this memory. The threads of one rank write."""

    def __init__(self, memory: memoryview) -> None:
        self._numbers, self._usual = itertools.count(1), memory
        self.write_to()

    def write_to(self, memory: memoryview | None = None) -> None:
        """Log here from now on; None: where it was at first."""
        self._memory = self._usual if memory is None else memory
        self._size = len(self._memory) // _ENTRY.size

    def write(self, group: int, tag: int, entered_ns: int, peer: int, nbytes: int, place: int, left_ns: int) -> int:
        """Log a message, given as the words of `MessageWord`; return its number."""
        number = next(self._numbers)
        at = number % self._size * _ENTRY.size
        _ENTRY.pack_into(self._memory, at, group, tag, entered_ns, peer, nbytes, place, left_ns, number)
        return number

    def end(self, number: int, peer: int, nbytes: int, place: int, left_ns: int) -> None:
        """The message of this number is done, if it is still in the log."""
        at = number % self._size * _ENTRY.size
        if _NUMBER.unpack_from(self._memory, at + _NUMBER_AT)[0] == number:
            _END.pack_into(self._memory, at + _END_AT, peer, nbytes, place, left_ns)

    def read(self) -> list[LoggedMessage]:
        """The messages, oldest first. One that is being written just now is left out."""
        seen = bytes(self._memory)
        again = self._memory.cast("B").cast("q")[MessageWord.NUMBER :: len(MessageWord)].tolist()
        oldest = max(0, max(again) - self._size + 1)
        return sorted(
            LoggedMessage(number, group, bool(peer & 1), peer >> 1, tag, nbytes, place, entered_ns, left_ns)
            for at, (group, tag, entered_ns, peer, nbytes, place, left_ns, number) in enumerate(
                _ENTRY.iter_unpack(seen)
            )
            if number > oldest and number == again[at]
        )
