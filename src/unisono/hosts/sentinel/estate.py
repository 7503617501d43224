"""The state that a sentinel saves for its successor, in a file without a name, which its ranks have open, too.

The file contains the sentinel's setup, some numbers, and two places for its state. The sentinel overwrites the older
state, then one number that says which place is newer. So a process that is killed while it writes leaves the earlier
state intact.
"""

import json
import os
from collections.abc import Mapping
from mmap import mmap
from typing import Any

_SETUP, _STATES = 1 << 20, (1 << 30, 1 << 31)
"""Where these parts begin. The file takes memory only for what is written."""
_FIRST = 3  # the words before those of the hosts


class Estate:
    """The saved state of the sentinel of one host.

    setup: what it serves; see `start`.
    turns: one word: how often it has checked its messages.
    highest: host -> the highest number of a datagram that has arrived.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self._words = fd, memoryview(mmap(fd, _SETUP)).cast("Q")
        self.setup: dict[str, Any] = json.loads(os.pread(fd, self._words[0], _SETUP))
        self.turns, self.highest = self._words[2:_FIRST], self._words[_FIRST:][: len(self.setup["hosts"])]

    @classmethod
    def create(cls, setup: Mapping[str, object]) -> "Estate":
        """An empty one. Raises OSError."""
        fd, data = os.memfd_create("unisono-estate", os.MFD_CLOEXEC), json.dumps(setup).encode()
        os.ftruncate(fd, _SETUP)
        os.pwrite(fd, data, _SETUP)
        os.pwrite(fd, len(data).to_bytes(8, "little"), 0)
        return cls(fd)

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self.fd)

    def write(self, state: object) -> None:
        """Save a state."""
        import pickle  # a sentinel starts without

        data, half = pickle.dumps(state, pickle.HIGHEST_PROTOCOL), (self._words[1] >> 63) ^ 1
        os.pwrite(self.fd, data, _STATES[half])
        self._words[1] = half << 63 | len(data)

    def read(self) -> Any:
        """The state that was saved last; None if there is none."""
        import pickle

        half, length = self._words[1] >> 63, self._words[1] & ~(1 << 63)
        return pickle.loads(os.pread(self.fd, length, _STATES[half])) if length else None  # noqa: S301  of this user


def turns_of(fd: int) -> int:
    """How often a sentinel has checked its messages, by the file of its estate."""
    return int.from_bytes(os.pread(fd, 8, 16), "little")
