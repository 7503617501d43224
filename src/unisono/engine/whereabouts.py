"""One page per rank of a world: whether its process answers with its stacks, and the call in which it waits, if any.

The owner writes, peers read, in slow paths only. The version is odd while the wait is being written.
"""

from __future__ import annotations

import struct

from ..records import Wait

__all__ = ["WHEREABOUTS_BYTES", "Whereabouts"]

WHEREABOUTS_BYTES = 4096
_STACKS, _VERSION, _LENGTH, _WAIT = 0, 8, 16, 24
_ROOM = WHEREABOUTS_BYTES - _WAIT


class Whereabouts:
    """The page of one rank."""

    def __init__(self, page: memoryview) -> None:
        self._page = page

    @property
    def stacks(self) -> int:
        """Where the process writes its stacks if it is asked: see `stacks.answer_with_stacks`; 0: nowhere."""
        return self._word(_STACKS)

    def set_stacks(self, number: int) -> None:
        """Say where this process writes its stacks."""
        struct.pack_into("<Q", self._page, _STACKS, number)

    @property
    def wait(self) -> Wait | None:
        """The call in which the rank waits; None if it does not wait, or this is being written."""
        version, length = self._word(_VERSION), self._word(_LENGTH)
        data = bytes(self._page[_WAIT : _WAIT + min(length, _ROOM)])
        if not data or version & 1 or version != self._word(_VERSION):
            return None
        return Wait.unpack(data)

    def set_wait(self, wait: Wait | None) -> None:
        """Say in which call this rank waits."""
        data, version = b"" if wait is None else wait.pack(_ROOM), self._word(_VERSION)
        struct.pack_into("<Q", self._page, _VERSION, version | 1)
        self._page[_WAIT : _WAIT + len(data)] = data
        struct.pack_into("<Q", self._page, _LENGTH, len(data))
        struct.pack_into("<Q", self._page, _VERSION, (version | 1) + 1)

    def _word(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self._page, at)[0])
