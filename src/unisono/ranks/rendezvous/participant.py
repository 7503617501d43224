"""One of several ranks that wait for each other at a store, until all go on or one of them gives up."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import ClassVar

from torch.distributed import PrefixStore, Store

from ...base.errors import ArgumentError, PeerGone, UnisonoError
from ...observe.live.meeting_page import waits
from .asked_store import AskedStore
from .entries import MeetingEnd, read, write
from .rendezvous_messages import why_ended

TOLD = "told"  # a key: how many ranks know why there is no group, and need the store no more
TO_COME = "to come"
_TO_DO = {
    "rank": TO_COME,
    "hosts": "to say which ranks share a host",
    "ready": "to hand out the memory of their host",
    "end": "to say how the meeting has ended",
    "sentinel": "to start the sentinel of its host",
}
"""First word of a key -> what the missing rank has to do."""
_CHECK_S = 0.1  # how often a rank that waits looks for the end, and for deaths
_ASK_S = 0.005
_LATE_S = 3.0  # how long the process that may run the store stays after it has given up


def may_come(_rank: int) -> str:
    """Why a rank that has not come will not come; "": it may come, as far as is known."""
    return ""


class Participant:
    """A rank that waits for keys, each of which another rank writes.

    Any rank may write at `end` why it gives up; the first value counts. A rank that waits for a key looks there, too.
    It writes there before its process ends, and a rank that sees the end of another process looks there first. So all
    ranks name the rank that has failed first.

    If the store does not answer, a rank looks at rank 0 only, whose process may run it: other ranks that have ended may
    have lost the store before.

    why_absent: see `may_come`.
    """

    end: ClassVar[str]  # the key
    _watched: Iterable[int]  # the ranks whose processes this rank watches

    def __init__(self, rank: int, size: int, store: Store, timeout_s: float, why_absent: Callable[[int], str]) -> None:
        self._rank, self._size, self._why_absent = rank, size, why_absent
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._part, self._store = store, AskedStore(store, rank, self._deadline, self._look_at_home)
        self._where = self._store.where

    def close(self) -> None:
        """Ask the store no more."""
        self._store.close()

    def _enter(self, part: str) -> None:
        """From now on, keys are those of this part of the store."""
        self._part = PrefixStore(part, self._part)
        self._store.enter(part)

    def _death(self, rank: int) -> PeerGone | None:
        """The error for another rank whose process has ended, as far as can be seen from here."""
        raise NotImplementedError

    def _stop_waiting(self, key: str, teller: int) -> bytes:
        """This rank's time is up: raise the error, or return the value of the key."""
        raise NotImplementedError

    def _absent(self) -> Sequence[int]:
        """The ranks that have not come."""
        return ()

    def _await(self, key: str, teller: int, within_s: float = math.inf) -> bytes:
        """The value of a key, once the store has it. within_s: how long this rank waits for it at most."""
        until = time.monotonic() + within_s
        waits([teller], _TO_DO[key.partition(" ")[0]], self._where)
        while (said := self._store.value(key, min(_CHECK_S, self._deadline - time.monotonic()))) is None:
            if time.monotonic() >= min(self._deadline, until):
                return self._stop_waiting(key, teller)
            reason = self._why_absent(teller)
            self._look()
            if reason:
                raise ArgumentError(reason)
        return said

    def _look(self) -> None:
        """Raise why the ranks do not go on, or PeerGone for a process that has ended before it could say why, or do its
        part.
        """
        dead = next(filter(None, map(self._death, self._watched)), None)  # before the look at the store
        if (said := self._store.now(self.end)) is not None:
            self._heed(said)
        elif dead:
            raise dead

    def _heed(self, said: bytes) -> None:
        """Raise why there is no group, if that is what has been written at the end."""
        if error := why_ended(read(MeetingEnd, said, 0, self._size), self._rank, time.monotonic() - self._start):
            raise error

    def _await_reason(self, until: float) -> None:
        """Raise why there is no group, if that is known by this time."""
        while time.monotonic() < until:
            self._look()
            time.sleep(_ASK_S)

    def _look_at_home(self) -> None:
        if self._rank and (dead := self._death(0)):
            raise dead

    def _give_up(self, end: MeetingEnd) -> None:
        """Publish why there is no group. Rank 0's process, which may run the store, stays until all that wait know it:
        without the store they would name rank 0, or wait until their time is up.
        """
        with suppress(UnisonoError):  # the store has gone; the others see that themselves
            self._store.set_first(self.end, write(end))
            if self._rank:
                self._store.add(TOLD, 1)
                return
            absent = self._absent() if end.missing else ()  # these wait for the next meeting
            others = sum(rank not in absent and not self._death(rank) for rank in range(1, self._size))
            if others and self._where:
                stay = partial(_stay, self._part, others)
                # No daemon: a process ends after its threads.
                threading.Thread(target=stay, name="unisono stays for late ranks", daemon=False).start()


def _stay(store: Store, ranks: int) -> None:
    until = time.monotonic() + _LATE_S
    with suppress(UnisonoError), closing(AskedStore(store, 0, until)) as asked:
        while asked.add(TOLD, 0) < ranks and time.monotonic() < until:
            time.sleep(_ASK_S)
