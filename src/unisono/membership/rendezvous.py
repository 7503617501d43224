"""How processes that a launcher started find each other and come to share one arena.

They meet at a key-value store, where each says who it is: torch's, or where the launcher gives no port a `SocketStore`.
Rank 0 checks that all ranks can share memory, makes the arena, and publishes the random name of a Unix socket, through
which it hands the arena's file descriptor to the others: a descriptor arrives only within one host. What is read at the
store (`notices`) is not believed: the kernel says to whom the descriptor goes, and from whom it comes (`handover`).
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from ..channel import LONGEST_S
from ..config import Config
from ..engine.arena import Arena
from ..engine.process import start_ticks
from ..errors import ArgumentError, OutOfMemory, PeerGone, WaitTimeout
from ..records import Departure, DepartureKind
from .handover import fetch, hand_out
from .identity import Identity, why_apart
from .launch import Launch
from .local_sockets import listen
from .notices import MeetingVerdict, read_identity, write_identity
from .socket_store import SocketStore

if TYPE_CHECKING:
    from torch.distributed import Store as TorchStore  # type: ignore[attr-defined]  # torch's own __all__ omits it

    Store = TorchStore | SocketStore

__all__ = ["meet", "meeting_number", "open_store"]

_ASK_S = 0.005
_CHECK_S = 0.05
"""How often to look whether the ranks that have come are still there."""


def open_store(launch: Launch, timeout_s: float) -> Store:
    """The store where this launch's ranks meet, to be kept as long as they may need it: rank 0 may be its server.

    Raises WaitTimeout where rank 0 does not come, ArgumentError where its address, or the job's name, is taken.
    """
    if launch.job:
        return SocketStore(launch.job, launch.rank, timeout_s)
    # Imported late: torch.distributed takes a second, which only launched ranks pay.
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    start, serve = time.monotonic(), launch.rank == 0 and not launch.store_runs
    try:
        store: TorchStore = TCPStore(
            launch.address,
            launch.port,
            launch.size,
            serve,
            timedelta(seconds=min(LONGEST_S, timeout_s)),
            wait_for_workers=False,
            multi_tenant=True,  # so that a process group of torch can use the same port later
        )
    except RuntimeError as error:
        where = f"MASTER_ADDR={launch.address}, MASTER_PORT={launch.port}"
        if serve:
            raise ArgumentError(f"rank 0 cannot listen at {where}: {error}") from error
        details = f" It should listen at {where}: {error}."
        raise WaitTimeout("init()", time.monotonic() - start, (0,), launch.rank, details) from error
    store = PrefixStore(launch.prefix, store)
    return PrefixStore(f"{meeting_number(store, launch.rank)}", store)


def meeting_number(store: TorchStore, rank: int) -> int:
    """How many meetings this rank has held at this store, with this one; it is the same on all ranks.

    In the keys of a meeting, it keeps them apart from what earlier meetings have left.
    """
    return store.add(f"unisono meetings of rank {rank}", 1)


def meet(rank: int, size: int, store: Store, timeout_s: float, config: Config | None = None) -> Arena:
    """The arena of the `size` ranks that meet at this store.

    Raises WaitTimeout, naming the ranks that did not come; PeerGone for one that died meanwhile; ArgumentError on every
    rank where they cannot share memory: several hosts, containers or users, or threads of one process; OutOfMemory on
    every rank; ArgumentError for what no rank would have written to the store.
    """
    meeting = _Meeting(rank, size, store, timeout_s)
    return meeting.host(config) if rank == 0 else meeting.join()


class _Meeting:
    def __init__(self, rank: int, size: int, store: Store, timeout_s: float) -> None:
        self._rank, self._size, self._store = rank, size, store
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._identities = {rank: Identity.mine()}
        self._check_at = 0.0
        with self._at_store():
            store.set(f"rank {rank}", write_identity(self._identities[rank]))

    def host(self, config: Config | None) -> Arena:
        """Rank 0's part: gather the identities, judge them, hand the arena out."""
        try:
            for rank in range(1, self._size):
                self._identities[rank] = self._identity(rank)
                self._refuse_strangers()
            arena = Arena.create(self._size, config)
        except WaitTimeout as error:
            self._tell(MeetingVerdict(missing=error.missing))
            raise
        except PeerGone as error:
            self._tell(MeetingVerdict(dead=(error.rank,)))
            raise
        except OutOfMemory as error:
            self._tell(MeetingVerdict(full=str(error)))
            raise
        name = f"unisono-{secrets.token_hex(16)}"
        try:
            with listen(name) as listener:
                self._tell(MeetingVerdict(name=name))
                self._hand_out(arena, listener)
        except BaseException as error:
            words = f"gave up init(): {error}"
            arena.board(0).set_gone(DepartureKind.ABANDONED, words)  # for those that have the arena already
            arena.close()
            raise
        return arena

    def _hand_out(self, arena: Arena, listener: socket.socket) -> None:
        others = {rank: identity for rank, identity in self._identities.items() if rank}
        missing = hand_out(arena.fd, listener, others, self._deadline, self._check_peers)
        if missing:
            raise self._timeout(missing)

    def join(self) -> Arena:
        """Everybody else's part: wait for the verdict, fetch the descriptor."""
        self._identities[0] = self._identity(0)
        verdict = MeetingVerdict.read(self._get("verdict"), self._size)
        if verdict.reason:
            raise ArgumentError(verdict.reason)
        if verdict.full:
            raise OutOfMemory(f"rank 0: {verdict.full}")
        if verdict.missing:
            raise self._timeout(list(verdict.missing))
        if verdict.dead:
            raise self._gone(verdict.dead[0], self._identity(verdict.dead[0]))
        try:
            return fetch(verdict.name, self._identities[0], self._rank, self._deadline)
        except (EOFError, OSError) as error:
            self._check_peers([0])
            raise self._timeout([0]) from error

    def _refuse_strangers(self) -> None:
        if reason := why_apart(self._identities):
            self._tell(MeetingVerdict(reason=reason))
            raise ArgumentError(reason)

    def _tell(self, verdict: MeetingVerdict) -> None:
        with self._at_store():
            self._store.set("verdict", verdict.text())

    def _identity(self, rank: int) -> Identity:
        return read_identity(rank, self._get(f"rank {rank}"))

    def _get(self, key: str) -> bytes:
        """What the store has under a key, once it is there. Polls: the `wait` of torch's stores ignores Ctrl-C."""
        with self._at_store():
            while not self._store.check([key]):
                now = time.monotonic()
                if now >= self._deadline:
                    raise self._timeout(self._absent())
                if now >= self._check_at:
                    self._check_at = now + _CHECK_S
                    self._check_peers(self._identities)
                time.sleep(_ASK_S)
            return self._store.get(key)

    @contextmanager
    def _at_store(self) -> Iterator[None]:
        """Where the store has gone, say who has died, or wait no longer for rank 0."""
        try:
            yield
        except RuntimeError as error:
            self._check_peers(self._identities)
            raise self._timeout([0], f" The store where the ranks meet has gone: {error}.") from error

    def _check_peers(self, ranks: Iterable[int]) -> None:
        """Raise PeerGone if the process of another of these ranks, as far as they have come, has ended."""
        home = self._identities[self._rank]
        for rank in ranks:
            there = self._identities.get(rank)
            if rank == self._rank or there is None or (there.boot, there.namespaces) != (home.boot, home.namespaces):
                continue  # it has not come, or cannot be seen from here
            if start_ticks(there.pid) != there.ticks:
                raise self._gone(rank, there)

    def _gone(self, rank: int, identity: Identity) -> PeerGone:
        return PeerGone(rank, identity.pid, Departure(DepartureKind.DIED, "died"), self._rank, "init()")

    def _absent(self) -> list[int]:
        """Who has not come yet; rank 0, whose verdict is missing, if all have."""
        return [rank for rank in range(self._size) if not self._store.check([f"rank {rank}"])] or [0]

    def _timeout(self, missing: list[int], details: str = "") -> WaitTimeout:
        return WaitTimeout("init()", time.monotonic() - self._start, missing, self._rank, details)
