"""From a meeting to the group of all ranks of several hosts: sentinels and a carrier connect them.

No rank waits until a sentinel has started: its sockets are there before it is. While the carrier connects, the rank
looks at ranks of other hosts, and stops if one has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's __all__

from ...base.config import Config
from ...base.errors import InternalError, PeerFailed, PeerGone, WaitTimeout
from ...base.fd_channel import LONGEST_S
from ...base.records import DepartureKind, digest
from ...engine.carrier import Carrier, Lost
from ...engine.memory.meeting_page import waits
from ...engine.process.alive import start_ticks
from ...hosts.carriers.ucx import UcxCarrier
from ...hosts.far import Far
from ...hosts.sentinel.start import Sentinel
from ...hosts.span import Span
from ..rendezvous.asked_store import AskedStore
from ..rendezvous.entries import SentinelNotice, read, write
from ..rendezvous.meeting import leave_store, tell_gave_up
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
        raise InternalError("ranks of several hosts met without a store")
    deadline = time.monotonic() + timeout_s
    far: Far | None = None
    try:
        far = _join_sentinels(met, rank, met.store, config.host_silence_s, deadline)
        carrier = _connect(met, rank, met.store, far, deadline)
        here = met.names[met.hosts.host_of(rank)] if met.names else ""
        gid = digest("world", met.secret)
        span = Span(met.hosts, rank, gid, carrier, far, here)
        return Group(met.arena, rank, name=name, config=config, gid=gid, span=span)
    except BaseException as error:
        if not isinstance(error, PeerGone):  # else the other ranks hear of the gone rank, too
            tell_gave_up(met.arena, rank, error)
        if far is not None:
            far.close()
        dead = error.failed if isinstance(error, PeerGone) and error.how.how is DepartureKind.DIED else ()
        leave_store(met.store, rank, met.hosts.ranks - 1 - len(dead))
        raise


def _join_sentinels(met: MeetingResult, rank: int, store: Store, silent_s: float, deadline: float) -> Far:
    """Connect this rank to its host's sentinel, which the first rank of the host starts and connects to the others."""
    here, identities = met.hosts.host_of(rank), met.identities or {}
    first = met.hosts.members[here][0]

    def check_first() -> None:
        """Raise PeerGone if this host's first rank has ended."""
        there = identities.get(first)
        if there is not None and start_ticks(there.pid) != there.ticks:
            raise died(first, there.pid, rank)

    with closing(AskedStore(store, rank, deadline, check_first)) as asked:
        if rank != first:
            name = _notice_of(here, met, rank, asked, check_first, deadline).socket
        else:
            sentinel, name = Sentinel(met.arena), f"unisono-{os.urandom(16).hex()}"
            try:
                own = SentinelNotice(name, *sentinel.listen(name, met.address))
                asked.set(_NOTICE.format(here), write(own))
                hosts = range(len(met.hosts.members))
                addresses = [_notice_of(host, met, rank, asked, check_first, deadline)[1:] for host in hosts]
                ranks = {one: (identities[one].pid, identities[one].ticks) for one in met.hosts.members[here]}
                sentinel.serve(met.hosts, here, ranks, addresses, met.secret, silent_s, names=met.names)
            except BaseException:
                sentinel.stop()
                raise
    try:
        return Far(met.arena, met.hosts, rank, name, silent_s, deadline)
    except ConnectionRefusedError as error:
        raise InternalError(f"the sentinel of host {here} has ended. Standard error has its output.") from error


def _notice_of(
    host: int, met: MeetingResult, rank: int, store: AskedStore, check: Callable[[], object], deadline: float
) -> SentinelNotice:
    """The notice of a host's first rank about its sentinel. check: called now and then; may raise."""
    first, began = met.hosts.members[host][0], time.monotonic()
    waits([first], "to start the sentinel of its host", store.where)
    while (said := store.value(_NOTICE.format(host), _LOOK_S)) is None:
        if time.monotonic() > deadline:
            raise missing((first,), rank, time.monotonic() - began, " The sentinel of its host has not started.")
        check()
    return read(SentinelNotice, said, first)


def _connect(met: MeetingResult, rank: int, store: Store, far: Far, deadline: float) -> Carrier:
    """Connect this rank to all others, by the deadline: tables that know no hosts send messages within a host, too.

    Raises PeerGone if a rank has ended meanwhile, or given up; WaitTimeout if a rank does not come; PeerFailed if a
    connection cannot be made.
    """
    began = time.monotonic()
    waits([peer for peer in range(met.hosts.ranks) if peer != rank], "to connect", met.address)
    look = partial(_check_peers, far, met, rank)
    left_s = min(LONGEST_S, max(0.0, deadline - began))
    try:
        with closing(AskedStore(PrefixStore("messages", store), rank, deadline, look)) as asked:
            return UcxCarrier(asked, rank, met.hosts.ranks, met.address, left_s, look)
    except (Lost, RuntimeError) as error:
        now = time.monotonic()
        until = min(now + far.silent_s, max(now, deadline)) + _CAUSE_S
        while time.monotonic() < until:
            look()  # the connection breaks before a sentinel says why
            time.sleep(_LOOK_S)
        if not isinstance(error, Lost):  # the transport's error
            raise PeerFailed(rank, f"cannot connect to other hosts: {error}", rank, "init()") from error
        how = f"cannot be reached: {error.reason}"
        if time.monotonic() <= deadline:
            raise PeerFailed(error.peer, how, rank, "init()") from error
        raise WaitTimeout("init()", time.monotonic() - began, (error.peer,), rank, f" It {how}.") from error


def _check_peers(far: Far, met: MeetingResult, rank: int) -> None:
    """Raise PeerGone for a rank that has failed. A rank that has ended well had connected before."""
    for peer in range(met.hosts.ranks):
        how = far.left(peer) if peer != rank else None
        if how is not None and how.how in (DepartureKind.RAISED, DepartureKind.DIED):
            identity = (met.identities or {}).get(peer)
            raise PeerGone(
                peer, identity.pid if identity else met.arena.board(peer).pid, how, rank, "init()", met=False
            )
