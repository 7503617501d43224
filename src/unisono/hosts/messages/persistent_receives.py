"""Where short messages arrive, call after call: their receives are posted before anybody needs them.

A carrier moves a message once its receive has been posted, and the sender has heard of that. So a receive that calls
use again and again is posted as soon as its message has been used, for the next call of its kind, whenever that is
made. Its tag is the same in all of these; the word behind its bytes says of which call they are. What a failed call has
left there is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from ...engine.carrier import Carrier, Handle, Lost

_STANDING_BYTES, _RECEIVE_BYTES = 16 << 20, 4096
"""How much memory may have receives that nobody may ever need, as their groups may be closed; and what a receive takes
besides its data. Others are posted by the call that needs them."""

_OFTEN = 3
"""A receive stands after so many calls."""

_LINE, _WORD = 64, 8


class ReceiveBuffer:
    """The memory of one message of each call of a kind. handle: its receive, if posted. whole: begins with the message,
    and ends with a cache line. users: how many exchanges have it. uses: how many calls have used it. stands: its
    receive is posted ahead. used: it waits to be posted again.

    Any thread may post it, all else is for the one that makes the call.
    """

    __slots__ = ("_data", "_lock", "_word", "handle", "key", "stands", "used", "users", "uses", "whole")

    def __init__(self, peer: int, tag: int, nbytes: int) -> None:
        self.key, self.stands, self.used, self.users, self.uses = (peer, tag, nbytes), False, False, 0, 0
        self._lock = threading.Lock()
        self.whole = torch.empty(-(-nbytes // _LINE) * _LINE, dtype=torch.uint8, device="cpu")
        self._data = self.whole[:nbytes]
        array: Any = self._data.numpy()
        self._word = memoryview(array)[-_WORD:].cast("q")
        self.handle: Handle | None = None

    def post(self, carrier: Carrier) -> None:
        """Post its receive, unless it has been. Raises Lost."""
        with self._lock:
            if self.handle is None:
                self._word[0] = 0
                self.handle = carrier.irecv(*self.key[:2], self._data)

    def take(self, number: int) -> bool:
        """Have the message, whose word is there; False if it is not of the call of this number. Raises Lost.

        The lock keeps other threads from posting it for the next call, which clears the word, before the word is read.
        """
        with self._lock:
            if self.handle is not None:
                self.handle.settle()
            is_of_call = self._word[0] == number
            self.handle = None
        return is_of_call


class ReceiveBuffers:
    """All receive buffers of a rank that a carrier brings messages to. They outlive the calls and groups that they are
    for: a receive cannot be taken back.
    """

    def __init__(self) -> None:
        self._all: dict[tuple[int, int, int], ReceiveBuffer] = {}
        self._used: deque[ReceiveBuffer] = deque()
        self._room = _STANDING_BYTES

    @classmethod
    def of(cls, carrier: Carrier) -> ReceiveBuffers:
        """Those of a carrier."""
        return _OF.setdefault(carrier, cls())

    def at(self, peer: int, tag: int, nbytes: int) -> ReceiveBuffer:
        """The buffer for messages from this rank of the world that have this tag and size, until it is given back."""
        key = peer, tag, nbytes
        landing = self._all.get(key) or self._all.setdefault(key, ReceiveBuffer(*key))
        landing.users += 1
        return landing

    def give_back(self, landing: ReceiveBuffer) -> None:
        """One exchange less uses it. To be called where calls of its kind are made."""
        landing.users -= 1
        if not (landing.users or landing.stands or landing.handle):
            del self._all[landing.key]

    def has_used(self, landing: ReceiveBuffer) -> None:
        """What has arrived there is needed no more."""
        landing.uses += 1
        nbytes = landing.whole.nbytes + _RECEIVE_BYTES
        if not landing.stands and landing.uses >= _OFTEN and nbytes <= self._room:
            self._room -= nbytes
            landing.stands = True
        if landing.stands and not landing.used:
            landing.used = True
            self._used.append(landing)

    def post_used(self, carrier: Carrier) -> None:
        """Post the receives of those that have been used; to be called while one waits, perhaps in another group.

        Of ranks that cannot be reached any more, the next call for them says so.
        """
        while self._used:
            try:
                landing = self._used.popleft()
            except IndexError:  # another thread has posted the last one
                return
            landing.used = False  # before it is posted: the next call may have used it by then
            with suppress(Lost):
                landing.post(carrier)


_OF: WeakKeyDictionary[Any, ReceiveBuffers] = WeakKeyDictionary()


class PersistentReceive(NamedTuple):
    """How short messages arrive in receives that may stand. tag: of that from one rank to another in a round; the same
    in all calls of a kind, of which only one is made at a time.
    """

    landings: ReceiveBuffers
    tag: Callable[[int], int]
