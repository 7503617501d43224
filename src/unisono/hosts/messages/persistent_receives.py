"""Where short messages arrive, call after call: their receives are posted before a rank needs them.

A carrier moves a message once its receive has been posted, and the sender has heard of this. So a receive that calls
use again and again is posted as soon as its message has been used, for the next call of its kind. Its tag is the same
in all these calls; the word behind its bytes is the number of the call. A message of a failed call is dropped.
"""

import ctypes
import threading
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...engine.carrier import Carrier, Handle, Lost

_STANDING_BYTES, _RECEIVE_BYTES = 16 << 20, 4096
"""The most memory of persistent receives, because their groups may be closed and not need them; and the memory of a
receive besides its data. All other receives are posted by the call that needs them.
"""

_OFTEN = 3
"""The number of calls after which a receive is persistent."""

_LINE, _WORD = 64, 8


class ReceiveBuffer:
    """The memory of one message of each call of a kind.

    Any thread may post it; all other methods are for the thread that makes the call.

    handle: its receive, if posted.
    whole: begins with the message, and ends with a cache line.
    users: the number of tapes that have it.
    uses: the number of calls that have used it.
    posted: the address of a word: 1 while its receive is posted, else 0.
    is_persistent: its receive is posted ahead.
    used: it waits to be posted again.
    """

    __slots__ = (
        "_data", "_is_posted", "_lock", "_word", "handle", "is_persistent", "key", "posted", "used", "users", "uses",
        "whole",
    )  # fmt: skip

    def __init__(self, peer: int, tag: int, nbytes: int) -> None:
        self.key, self.is_persistent, self.used, self.users, self.uses = (peer, tag, nbytes), False, False, 0, 0
        self._lock = threading.Lock()
        self.whole = torch.empty(-(-nbytes // _LINE) * _LINE, dtype=torch.uint8, device="cpu")
        self._data = self.whole[:nbytes]
        array: Any = self._data.numpy()
        self._word = memoryview(array)[-_WORD:].cast("q")
        self.handle: Handle | None = None
        self._is_posted = ctypes.c_int64()
        self.posted = ctypes.addressof(self._is_posted)

    def post(self, carrier: Carrier) -> None:
        """Post its receive, unless it has been. Raises Lost."""
        with self._lock:
            if self.handle is None:
                self._word[0] = 0
                self.handle = carrier.irecv(*self.key[:2], self._data)
                self._is_posted.value = 1

    def take(self, number: int) -> bool:
        """Take the message; its word is there. False if it is not of the call of this number. Raises Lost.

        The lock keeps other threads from posting it for the next call, which clears the word, before the word is read.
        """
        with self._lock:
            if self.handle is not None:
                self.handle.settle()
            is_of_call = self._word[0] == number
            self.handle, self._is_posted.value = None, 0
        return is_of_call


class ReceiveBuffers:
    """All receive buffers of a rank for a carrier. They outlive their calls and groups, because a receive cannot be
    taken back.
    """

    def __init__(self) -> None:
        self._all: dict[tuple[int, int, int], ReceiveBuffer] = {}
        self._used: deque[ReceiveBuffer] = deque()
        self._room = _STANDING_BYTES

    @classmethod
    def of(cls, carrier: Carrier) -> "ReceiveBuffers":
        return _OF.setdefault(carrier, cls())

    def at(self, peer: int, tag: int, nbytes: int) -> ReceiveBuffer:
        """The buffer for messages with this tag and size from this rank of the world, until it is given back."""
        key = peer, tag, nbytes
        buffer = self._all.get(key) or self._all.setdefault(key, ReceiveBuffer(*key))
        buffer.users += 1
        return buffer

    def give_back(self, buffer: ReceiveBuffer) -> None:
        """One tape less uses it. Call this on the thread that makes calls of its kind."""
        buffer.users -= 1
        if not (buffer.users or buffer.is_persistent or buffer.handle):
            del self._all[buffer.key]

    def has_used(self, buffer: ReceiveBuffer) -> None:
        """The message there is needed no more."""
        buffer.uses += 1
        nbytes = buffer.whole.nbytes + _RECEIVE_BYTES
        if not buffer.is_persistent and buffer.uses >= _OFTEN and nbytes <= self._room:
            self._room -= nbytes
            buffer.is_persistent = True
        if buffer.is_persistent and not buffer.used:
            buffer.used = True
            self._used.append(buffer)

    def post_used(self, carrier: Carrier) -> None:
        """Post the receives of used buffers. A rank calls this while it waits, perhaps in another group.

        If a rank cannot be reached any more, the next call that needs it says so.
        """
        while self._used:
            try:
                buffer = self._used.popleft()
            except IndexError:  # another thread has posted the last one
                return
            buffer.used = False  # before the post: the next call may use it right after
            with suppress(Lost):
                buffer.post(carrier)


_OF: WeakKeyDictionary[Any, ReceiveBuffers] = WeakKeyDictionary()
