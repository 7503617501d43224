"""From a meeting to the group of all ranks of several hosts: sentinels and a carrier connect them.

The sentinel takes a moment to start, and the carrier to connect: both go on at the same time. No rank waits for the
sentinel: its sockets are there before it is. If a rank of another host ends while the carrier connects, or on Ctrl-C,
the caller stops. Engines notice neither. So one thread connects, and the caller's thread looks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from functools import partial

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's __all__

from ...base.config import Config
from ...base.errors import InternalError, PeerFailed, PeerGone, UnisonoError, WaitTimeout
from ...base.fd_channel import LONGEST_S
from ...base.python import leave_behind
from ...base.records import DepartureKind, digest
from ...engine.carrier import Carrier, Lost
from ...engine.memory.meeting_page import waits
from ...engine.process.alive import start_ticks
from ...hosts.carriers.ucx import UcxCarrier
from ...hosts.carriers.ucx_library import NoUcx, ucx_library
from ...hosts.far import Far
from ...hosts.sentinel.start import Sentinel
from ...hosts.span import Span
from ..rendezvous.asked_store import AskedStore, complete
from ..rendezvous.entries import SentinelNotice, read, write
from ..rendezvous.meeting import stay_for
from ..rendezvous.meetings import TOLD
from ..rendezvous.rendezvous import MeetingResult
from ..rendezvous.rendezvous_messages import died, missing
from .group import Group

_NOTICE = "sentinel {}"  # the key of a host's `SentinelNotice`
_LOOK_S = 0.02
_CAUSE_S = 1.0
"""How long to look for the reason of a failed connection, after the time for which hosts may be silent: sentinels need
this long at most. It is also the longest time by which connecting may exceed its limit.
"""


def group_over_hosts(met: MeetingResult, rank: int, *, name: str, config: Config, timeout_s: float) -> Group:
    """The group of all ranks of several hosts that have met; see `world_group`."""
    if met.store is None:
        raise InternalError("ranks of several hosts have met without a store")
    deadline = time.monotonic() + timeout_s
    connecting: Connecting | None = None
    far: Far | None = None
    try:
        with suppress(NoUcx):  # the carrier raises it
            ucx_library()  # here, not on the thread that connects
        left_s = min(LONGEST_S, max(0.0, deadline - time.monotonic()))
        # To all other ranks: tables that know no hosts send messages within a host, too.
        where = PrefixStore("messages", met.store), rank, met.hosts.ranks, met.address, left_s
        connecting = Connecting(partial(UcxCarrier, *where))
        joining = _Joining(met, rank, met.store, config.host_silence_s, deadline)
        far = joining.far()
        carrier = connecting.carrier(far, met, rank, deadline)
    except BaseException as error:
        if connecting is not None:
            connecting.abandon()
        if not isinstance(error, PeerGone):  # else the other ranks hear of the gone rank, too
            said = ": ".join(filter(None, [type(error).__qualname__, " ".join(str(error).split())]))
            met.arena.board(rank).set_gone(DepartureKind.RAISED, f"gave up init(): {said}")
        if far is not None:
            far.close()
        _leave_store(met.store, rank, met.hosts.ranks, error)
        raise
    here = met.names[met.hosts.host_of(rank)] if met.names else ""
    gid = digest("world", met.secret)
    span = Span(met.hosts, rank, gid, carrier, far, here)
    return Group(met.arena, rank, name=name, config=config, gid=gid, span=span)


def _leave_store(store: Store, rank: int, size: int, error: BaseException) -> None:
    """This rank needs the store no more. Rank 0's process, which may run it, stays until that is so of all others."""
    if rank == 0:
        dead = error.failed if isinstance(error, PeerGone) and error.how.how is DepartureKind.DIED else ()
        stay_for(store, size - 1 - len(dead))
        return
    with suppress(UnisonoError), closing(AskedStore(store, rank, time.monotonic())) as asked:
        asked.add(TOLD, 1)


class _Joining:
    """Connects the sentinels of all hosts to each other, and this rank to its own."""

    def __init__(self, met: MeetingResult, rank: int, store: Store, silent_s: float, deadline: float) -> None:
        self._met, self._rank, self._silent_s, self._deadline = met, rank, silent_s, deadline
        self._began = time.monotonic()
        self._host = met.hosts.host_of(rank)
        self._first = met.hosts.members[self._host][0]
        self._store = AskedStore(store, rank, deadline, self._check)
        if rank == self._first:
            self._sentinel = met.sentinel or Sentinel(met.arena)
            self._name = f"unisono-{os.urandom(16).hex()}"
            try:
                notice = SentinelNotice(self._name, *self._sentinel.listen(self._name, met.address))
                self._store.set(_NOTICE.format(self._host), write(notice))
            except BaseException:
                self._store.close()
                raise

    def far(self) -> Far:
        """This rank's connection to the sentinel of its host, which the first rank of the host has started."""
        met = self._met
        with closing(self._store):
            name = self._serve() if self._rank == self._first else self._said(self._host).socket
        try:
            return Far(met.arena, met.hosts, self._rank, name, self._silent_s, self._deadline)
        except ConnectionRefusedError as error:
            raise InternalError(
                f"the sentinel of host {self._host} has ended already: standard error shows what it said"
            ) from error

    def _serve(self) -> str:
        met, identities = self._met, self._met.identities or {}
        ranks = {rank: (identities[rank].pid, identities[rank].ticks) for rank in met.hosts.members[self._host]}
        try:
            addresses = [self._said(host)[1:] for host in range(len(met.hosts.members))]
            where = met.hosts, self._host, ranks, addresses, met.secret, self._silent_s
            self._sentinel.serve(*where, names=met.names)
        except BaseException:
            self._sentinel.stop()
            raise
        return self._name

    def _said(self, host: int) -> SentinelNotice:
        """The notice of a host's first rank about its sentinel."""
        first = self._met.hosts.members[host][0]
        waits([first], "to start the sentinel of its host", self._store.where)
        while (said := self._store.value(_NOTICE.format(host), _LOOK_S)) is None:
            self._look(first)
        return read(SentinelNotice, said, first)

    def _look(self, first: int) -> None:
        """Raise if rank `first` has no more time to start its sentinel, or if this host's first rank has ended."""
        if time.monotonic() > self._deadline:
            raise missing((first,), self._rank, time.monotonic() - self._began, " Its host's sentinel has not come.")
        self._check()

    def _check(self) -> None:
        """Raise PeerGone if this host's first rank has ended."""
        there = (self._met.identities or {}).get(self._first)
        if there is not None and start_ticks(there.pid) != there.ticks:
            raise died(self._first, there.pid, self._rank)


class Connecting:
    """A thread makes a carrier by `make`, which connects this rank to all others."""

    def __init__(self, make: Callable[[], Carrier]) -> None:
        self._attempt, self._began = Future[Carrier](), time.monotonic()
        name = "unisono connects to other hosts"
        self._thread = threading.Thread(target=complete, args=(make, self._attempt), name=name, daemon=True)
        self._thread.start()

    def carrier(self, far: Far, met: MeetingResult, rank: int, deadline: float) -> Carrier:
        """The carrier, once it is connected, by the deadline.

        Raises PeerGone if a rank has ended meanwhile, or given up; WaitTimeout if a rank does not come; PeerFailed if a
        connection cannot be made.
        """
        waits([peer for peer in range(met.hosts.ranks) if peer != rank], "to connect", met.address)
        while not wait([self._attempt], _LOOK_S).done:
            _check_peers(far, met, rank)
            if time.monotonic() > deadline + _CAUSE_S:
                details = (
                    " It can neither connect to the other hosts nor stop: a rank, or the store's process, is stopped."
                )
                raise WaitTimeout("init()", time.monotonic() - self._began, (), rank, details)
        now = time.monotonic()
        until = min(now + far.silent_s, max(now, deadline)) + _CAUSE_S
        while isinstance(self._attempt.exception(), Lost | RuntimeError) and time.monotonic() < until:
            _check_peers(far, met, rank)  # the connection breaks before a sentinel says why
            time.sleep(_LOOK_S)
        try:
            return self._attempt.result()
        except Lost as lost:
            if time.monotonic() > deadline:
                details, waited_s = f" It cannot be reached: {lost.reason}.", time.monotonic() - self._began
                raise WaitTimeout("init()", waited_s, (lost.peer,), rank, details) from lost
            raise PeerFailed(lost.peer, f"cannot be reached: {lost.reason}", rank, "init()") from lost
        except RuntimeError as error:  # the transport's error
            raise PeerFailed(rank, f"cannot connect to other hosts: {error}", rank, "init()") from error

    def abandon(self) -> None:
        """End the carrier, now or when the thread has made it: no thread waits for it any more."""
        self._attempt.add_done_callback(_abort)
        leave_behind(self._thread)


def _check_peers(far: Far, met: MeetingResult, rank: int) -> None:
    """Raise PeerGone for a rank that has failed. A rank that has ended well had connected before."""
    for peer in range(met.hosts.ranks):
        how = far.left(peer) if peer != rank else None
        if how is not None and how.how in (DepartureKind.RAISED, DepartureKind.DIED):
            identity = (met.identities or {}).get(peer)
            raise PeerGone(
                peer, identity.pid if identity else met.arena.board(peer).pid, how, rank, "init()", met=False
            )


def _abort(attempt: Future[Carrier]) -> None:
    """End a carrier."""
    if attempt.exception() is None:
        attempt.result().abort()
