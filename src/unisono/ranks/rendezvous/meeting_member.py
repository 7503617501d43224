"""One rank in a meeting: it writes its identity, reads the others' messages, and sees deaths and the meeting's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, suppress

from torch.distributed import Store as TorchStore  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError, WaitTimeout
from ...engine.memory.meeting_page import waits, waits_still
from ...engine.process.alive import start_ticks
from ...hosts.addresses import own_address, store_host
from .asked_store import AskedStore, at_store
from .identity import Identity, common_settings
from .meetings import BEAT, END
from .rendezvous_messages import (
    MeetingMessage,
    died,
    message_of,
    missing,
    read_identity,
    twice,
    why_ended,
    write_identity,
)
from .socket_store import SocketStore
from .stores import Store

_LATE_S = 3.0  # how long after the end of the meeting ranks may still come
_LOOK_LATE_S = 0.005


def stay_for(store: TorchStore, ranks: Sequence[int]) -> None:
    """Keep this process for a moment, until these ranks, too, know why there is no group.

    Rank 0's process may run the store. Without it, late ranks would look for the store until their time is up.
    """
    if ranks:
        # No daemon: a process ends after its threads.
        threading.Thread(target=_stay, args=(store, ranks), name="unisono tells late ranks", daemon=False).start()


def _stay(store: TorchStore, ranks: Sequence[int]) -> None:
    until = time.monotonic() + _LATE_S
    with suppress(RuntimeError, TimeoutError), closing(AskedStore(store, until)) as asked:
        for rank in ranks:
            while not asked.check([f"told {rank}"]) and time.monotonic() < until:
                time.sleep(_LOOK_LATE_S)


_ASK_S = 0.005
_CHECK_S = 0.05  # how often to look whether the ranks that have come are still there
_SAY_S = 1.0  # how often rank 0 looks which ranks have not come, to say so on its page
_TO_DO = {
    "rank": "to come",
    "hosts": "to say which ranks share a host",
    "host": "to hand out the memory of their host",
    "proven": "to say which ranks have the memory of their host",
    END: "to say how the meeting has ended",
}
"""First word of a key -> what the missing rank has to do."""
_REASON_S = 1.0
"""How much longer to wait for the reason why there is no group: rank 0's time may be up a little later. Rank 0 waits as
long until the ranks that have come have read the reason, because its process may run the store.
"""


class MeetingMember:
    """The part that all ranks have in a meeting. The keys at the store:

        rank 3      each rank: its identity
        hosts       rank 0: which ranks may share a host
        host 4      the first rank of a host: where it hands out its memory
        apart 5     a rank that did not get the memory
        proven 4    the first rank of a host: which ranks got the memory
        beat        rank 0: a number that grows while rank 0 waits
        end         rank 0: how the meeting has ended; or the first rank that gives up: why there is no group
        told 5      a rank that knows why there is no group: it asks the store no more

    A rank tells why it gives up before its process ends. A rank that sees the end of another process first looks for
    such a message. So all ranks name the rank that has failed first.
    """

    def __init__(
        self, rank: int, size: int, store: Store, timeout_s: float, config: Config, why_absent: Callable[[int], str]
    ) -> None:
        self._rank, self._size, self._met_at, self._why_absent = rank, size, store, why_absent
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._leads = rank == 0
        address = "" if isinstance(store, SocketStore) else own_address(store_host(store))
        own = Identity.mine().replace(common=common_settings(config), address=address)
        self._identities = {rank: own}
        self._store = (
            store if isinstance(store, SocketStore) else AskedStore(store, self._deadline, self._look_at_peers)
        )
        self._where = self._store.where

    def close(self) -> None:
        """End the thread that asks the store. The store itself stays."""
        if isinstance(self._store, AskedStore):
            self._store.close()

    def _come(self) -> None:
        """Write this rank's identity. Raises ArgumentError if another process has come as this rank."""
        own = self._identities[self._rank]
        with self._at_store():
            said = self._store.set_first(f"rank {self._rank}", write_identity(own))
        there = read_identity(self._rank, said)
        if (there.place, there.pid, there.ticks) != (own.place, own.pid, own.ticks):
            raise twice(self._where, self._rank, f"process {there.pid} on {there.where}")

    def _tell(self, key: str, message: MeetingMessage) -> None:
        with self._at_store():
            self._store.set(key, message.text())

    def _end(self, message: MeetingMessage) -> MeetingMessage:
        """Write rank 0's last message. Raises if another rank has ended the meeting."""
        with self._at_store():
            said = self._store.set_first(END, message.text())
        return self._heed(MeetingMessage.read(said, self._size))

    def _give_up(self, error: BaseException) -> None:
        """Tell the others why there is no group. If this rank's process may run the store, wait until they have read
        the reason.
        """
        self._tell_why(error)
        if isinstance(self._met_at, SocketStore):
            return  # the message arrives, also when the store has gone
        with suppress(UnisonoError, RuntimeError, TimeoutError):
            if self._rank and self._store.check([END]):
                self._store.set(f"told {self._rank}", "")
            elif not self._rank:
                untold = self._until_told()
                if not isinstance(error, WaitTimeout):  # later ranks would fail in the same way
                    stay_for(self._met_at, [rank for rank in untold if not self._why_absent(rank)])

    def _tell_why(self, error: BaseException) -> None:
        """Tell the others why there is no group, if they do not know. A rank that no longer waits for its first rank
        just leaves: it may come again, until the meeting has ended. A rank that others count on calls `_leave`.
        """
        if not isinstance(error, WaitTimeout) or self._leads:
            with suppress(UnisonoError, RuntimeError, TimeoutError):  # the store has gone; this rank says so itself
                self._store.set_first(END, message_of(error, self._rank).text())

    def _until_told(self) -> list[int]:
        """Wait until all ranks that have come know why there is no group, or have gone. Returns the others: most of
        them have not come yet.
        """
        until, untold = time.monotonic() + _REASON_S, list(range(1, self._size))
        while True:
            untold = [rank for rank in untold if self._may_ask(rank)]
            if self._identities.keys().isdisjoint(untold) or time.monotonic() >= until:
                return untold
            time.sleep(_ASK_S)

    def _may_ask(self, rank: int) -> bool:
        """May a rank, now or later, ask the store why there is no group?"""
        if self._store.check([f"told {rank}"]):
            return False
        self._find(rank)
        return not self._has_died(rank)

    def _hear(self, key: str, teller: int = 0) -> MeetingMessage:
        """Read a rank's message. Raises if the message says why there is no group."""
        return self._heed(MeetingMessage.read(self._get(key, teller), self._size, teller))

    def _heed(self, message: MeetingMessage) -> MeetingMessage:
        pids = {rank: self._identity(rank).pid for rank in message.dead[:1]}
        if error := why_ended(message, self._rank, time.monotonic() - self._start, pids):
            raise error
        return message

    def _heed_the_end(self) -> bool:
        """Is there a group? Raises the error in a rank's message, if the message says why there is no group."""
        if self._store.check([END]):
            self._heed(MeetingMessage.read(self._store.get(END), self._size))
            return True
        return False

    def _await_reason(self) -> None:
        """Raise the reason why there is no group, if it is told soon."""
        until = time.monotonic() + _REASON_S
        with self._at_store():
            while time.monotonic() < until and not self._heed_the_end():
                time.sleep(_ASK_S)

    def _leave(self, error: WaitTimeout) -> bytes:
        """This rank's time is up, and others count on it: return how the meeting has ended. If it has not, end it and
        raise the error: else the others could form a group without this rank.
        """
        own = MeetingMessage(missing=(self._rank,)).text().encode()
        with self._at_store():
            said = self._store.set_first(END, own.decode())
        if said == own:
            raise error
        self._heed(MeetingMessage.read(said, self._size))
        return said

    def _identity(self, rank: int) -> Identity:
        return self._identities.get(rank) or read_identity(rank, self._get(f"rank {rank}", rank))

    def _get(self, key: str, teller: int) -> bytes:
        """The value of a key, once the store has it."""
        say_at = time.monotonic() + _SAY_S
        waits([teller], _TO_DO[key.partition(" ")[0]], self._where)
        with self._at_store():
            while (said := self._store.value(key, min(_CHECK_S, self._deadline - time.monotonic()))) is None:
                now = time.monotonic()
                if now >= self._deadline:
                    absent = self._absent()
                    if not absent and self._rank:
                        self._await_reason()
                    error = self._timeout(absent or [teller])
                    if key == END:  # a rank that waits for it has written all that the others need
                        return self._leave(error)
                    raise error
                self._find_next()
                self._check_peers(self._identities)
                reason = self._why_absent(teller)
                self._heed_the_end()
                if reason:
                    raise ArgumentError(reason)
                if self._rank == 0 and key == f"rank {teller}" and now >= say_at:
                    say_at = now + _SAY_S
                    waits(self._absent(), _TO_DO["rank"], self._where)
                if self._rank == 0 and not isinstance(self._store, SocketStore):
                    self._store.set(BEAT, f"{time.monotonic_ns()}")
                if self._rank == 0:  # the others wait for it
                    waits_still(self._absent if key == f"rank {teller}" else None)
                elif key == "rank 0":
                    waits_still()
            return said

    def _find_next(self) -> None:
        """Find the next rank that has come on this host, to see its death. So each rank has another one that watches
        it, whatever it waits for.
        """
        for after in range(1, self._size):
            rank = (self._rank + after) % self._size
            self._find(rank)
            if rank in self._identities and self._identities[rank].place == self._home.place:
                return

    def _find(self, rank: int) -> None:
        """Read a rank's identity, if it has come."""
        if rank not in self._identities and self._store.check([f"rank {rank}"]):
            self._identities[rank] = read_identity(rank, self._store.get(f"rank {rank}"))

    def _at_store(self) -> AbstractContextManager[None]:
        """If the store has gone, raise which rank has died, or that no rank waits at the store any longer."""
        return at_store(self._where, self._rank, self._start, self._look_why)

    def _look_why(self) -> None:
        """Raise why the store has gone, if a last message, which still arrives at sockets, or a death tells it."""
        if isinstance(self._store, SocketStore):
            with suppress(RuntimeError):  # there is no last message
                self._heed_the_end()
        self._look_at_peers()

    def _look_at_peers(self) -> None:
        """Raise PeerGone for a rank that has died, as far as this can be seen without the store."""
        for rank in self._identities:
            if self._has_died(rank):
                raise died(rank, self._identities[rank].pid, self._rank)

    def _check_peers(self, ranks: Iterable[int]) -> None:
        """Raise PeerGone if the process of another of these ranks has ended, unless it has told why, or has done its
        part: there is a group by now.
        """
        for rank in ranks:
            if self._has_died(rank):
                try:
                    if self._heed_the_end():
                        return
                except (RuntimeError, TimeoutError) as error:
                    if isinstance(error, WaitTimeout):
                        raise
                    # else the store has gone with the process
                raise died(rank, self._identities[rank].pid, self._rank)

    def _has_died(self, rank: int) -> bool:
        """Has the process of another rank ended? Only if it has come, and can be seen from here."""
        there = self._identities.get(rank)
        if rank == self._rank or there is None or there.place != self._home.place:
            return False
        return start_ticks(there.pid) != there.ticks

    @property
    def _home(self) -> Identity:
        return self._identities[self._rank]

    def _absent(self) -> list[int]:
        """The ranks that have not come yet."""
        return [rank for rank in range(self._size) if not self._store.check([f"rank {rank}"])]

    def _timeout(self, ranks: Sequence[int]) -> WaitTimeout:
        return missing(tuple(ranks), self._rank, time.monotonic() - self._start)
