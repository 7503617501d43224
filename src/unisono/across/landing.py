"""Where short messages arrive, call after call: their receives are posted before anybody needs them.

A carrier moves a message once its receive has been posted, and the sender has heard of that. So a receive is posted
again as soon as its message has been used, for the next call of its kind, whenever that is made. Its tag is the same in
all of these; the word behind its bytes says of which call they are. What a failed call has left there is dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from ..carriers import Carrier, Handle, Lost

__all__ = ["Landing", "Landings", "Standing"]

_STANDING_BYTES = 16 << 20
"""How much memory has receives that nobody may ever need; others are posted by the call that needs them."""

_WORD = 8


class Landing:
    """The memory of one message of each call of a kind. handle: its receive, if posted.

    Any thread may post it, all else is for the one that makes the call.
    """

    __slots__ = ("_lock", "_peer", "_stands", "_tag", "_word", "data", "handle")

    def __init__(self, peer: int, tag: int, nbytes: int) -> None:
        self._peer, self._tag, self._stands = peer, tag, False
        self._lock = threading.Lock()
        self.data = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        array: Any = self.data.numpy()
        self._word = memoryview(array)[-_WORD:].cast("q")
        self.handle: Handle | None = None

    def post(self, carrier: Carrier) -> None:
        """Post its receive, unless it has been. Raises Lost."""
        with self._lock:
            if self.handle is None:
                self._word[0] = 0
                self.handle = carrier.irecv(self._peer, self._tag, self.data)

    def take(self, number: int) -> bool:
        """Have the message, whose word is there; False if it is not of the call of this number. Raises Lost."""
        if self.handle is not None:
            self.handle.settle()
            self.handle = None
        return self._word[0] == number

    def stand(self, room: int) -> int:
        """How much of the room it takes from now on, if its receive may always be posted; -1: there is none."""
        nbytes = self.data.nbytes
        if not self._stands and nbytes <= room:
            self._stands = True
            return nbytes
        return 0 if self._stands else -1


class Landings:
    """All landings of a rank that a carrier brings messages to. They outlive the calls and groups that they are for:
    a receive cannot be taken back.
    """

    def __init__(self) -> None:
        self._all: dict[tuple[int, int, int], Landing] = {}
        self._used: deque[Landing] = deque()
        self._room = _STANDING_BYTES

    @classmethod
    def of(cls, carrier: Carrier) -> Landings:
        """Those of a carrier."""
        return _OF.setdefault(carrier, cls())

    def at(self, peer: int, tag: int, nbytes: int) -> Landing:
        """The landing of messages from this rank of the world that have this tag and size."""
        key = peer, tag, nbytes
        return self._all.get(key) or self._all.setdefault(key, Landing(*key))

    def has_used(self, landing: Landing) -> None:
        """What has arrived there is needed no more."""
        taken = landing.stand(self._room)
        if taken >= 0:
            self._room -= taken
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
            with suppress(Lost):
                landing.post(carrier)


_OF: WeakKeyDictionary[Any, Landings] = WeakKeyDictionary()


class Standing(NamedTuple):
    """How short messages arrive in receives that are always posted. tag: of that from one rank to another in a round;
    the same in all calls of a kind, of which only one is made at a time.
    """

    landings: Landings
    tag: Callable[[int], int]
