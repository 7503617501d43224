"""One page per rank of a world: whether its process answers with its stacks, and the call in which it waits, if any.

The owner writes, peers read, in slow paths only. The version is odd while the wait is being written. A rank that waits
says again and again that it still does: one that was stopped in a call may have nothing to wait for any more.
"""

from __future__ import annotations

import struct
import time

from ...base.records import Wait

WHEREABOUTS_BYTES = 4096
_STACKS, _VERSION, _LENGTH, _SAID_NS, _WAIT = 0, 8, 16, 24, 32
_ROOM = WHEREABOUTS_BYTES - _WAIT
FRESH_NS = 2_000_000_000
"""How old a word may be: a rank that waits looks up a hundred times in this time, unless the machine is very busy."""


class WaitStatus:
    """The page of one rank."""

    def __init__(self, page: memoryview) -> None:
        self._page = page

    @property
    def stacks(self) -> int:
        """Where the process writes its stacks if it is asked: see `engine.process.stacks.answer_with_stacks`; 0:
        nowhere."""
        return self._word(_STACKS)

    def set_stacks(self, number: int) -> None:
        """Say where this process writes its stacks."""
        struct.pack_into("<Q", self._page, _STACKS, number)

    @property
    def wait(self) -> Wait | None:
        """The call in which the rank waits; None if it has not said so lately, or this is being written."""
        version, length = self._word(_VERSION), self._word(_LENGTH)
        data = bytes(self._page[_WAIT : _WAIT + min(length, _ROOM)])
        if not data or version & 1 or version != self._word(_VERSION):
            return None
        if time.monotonic_ns() - self._word(_SAID_NS) > FRESH_NS:
            return None
        return Wait.unpack(data)

    def set_wait(self, wait: Wait | None) -> None:
        """Say in which call this rank waits; None: in none."""
        data, version = b"" if wait is None else wait.pack(_ROOM), self._word(_VERSION)
        struct.pack_into("<Q", self._page, _VERSION, version | 1)
        self._page[_WAIT : _WAIT + len(data)] = data
        struct.pack_into("<Q", self._page, _LENGTH, len(data))
        struct.pack_into("<Q", self._page, _VERSION, (version | 1) + 1)
        self.say_again()

    def say_again(self) -> None:
        """Say that it still waits there."""
        struct.pack_into("<Q", self._page, _SAID_NS, time.monotonic_ns())

    def _word(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self._page, at)[0])
