"""From a meeting to the group of all ranks of several hosts: sentinels and a carrier connect them.

No rank waits until a sentinel has started: its sockets are there before it is. A rank that gives up writes why at the
store, where the others look, as in the meeting: so all name the same rank, and none that has only given up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing, suppress

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's __all__

from ...base.config import Config
from ...base.errors import ArgumentError, InternalError, PeerFailed, PeerGone, UnisonoError, WaitTimeout
from ...base.fd_channel import LONGEST_S
from ...base.records import DepartureKind, digest
from ...engine.carrier import Carrier, Lost
from ...hosts.carriers.ucx import UcxCarrier
from ...hosts.far import Far
from ...hosts.sentinel.start import Sentinel
from ...hosts.span import Span
from ...observe.live.meeting_page import waits
from ..rendezvous.asked_store import AskedStore
from ..rendezvous.entries import MeetingEnd, SentinelNotice, read, write
from ..rendezvous.meeting import leave_store, tell_gave_up
from ..rendezvous.rendezvous import MeetingResult
from ..rendezvous.rendezvous_messages import end_of, gave_up, missing, why_ended
from .group import Group
from .rank_liveness import RankLiveness

_NOTICE = "sentinel {}"  # the key of a host's `SentinelNotice`
_END = "not connected"  # the key of why there is no group: a `MeetingEnd`
_LOOK_S, _CHECK_S = 0.02, 0.1  # how often a rank that waits looks for deaths, and at the store why there is no group
_START_S = 10.0
"""How long a host may take to start its sentinel. No rank of another host sees that the only rank here has been killed.
"""
_CAUSE_S = 1.0
"""How long to look for the reason of a failed connection, after the time for which hosts may be silent: sentinels need
this long at most. It is also the longest time by which connecting may exceed its limit.
"""


def group_over_hosts(
    met: MeetingResult, rank: int, *, name: str, config: Config, timeout_s: float, why_absent: Callable[[int], str]
) -> Group:
    """The group of all ranks of several hosts that have met; see `world_group`."""
    if met.store is None:
        raise InternalError("ranks of several hosts met without a store")
    with closing(_Connecting(met, rank, met.store, timeout_s, config.host_silence_s, why_absent)) as connecting:
        try:
            far, carrier = connecting.join_sentinels(), connecting.connect()
            here = met.names[met.hosts.host_of(rank)] if met.names else ""
            gid = digest("world", met.secret)
            span = Span(met.hosts, rank, gid, carrier, far, here)
            return Group(met.arena, rank, name=name, config=config, gid=gid, span=span)
        except BaseException as error:
            connecting.give_up(error)
            raise


class _Connecting:
    """One rank's part from the meeting to the group.

    silent_s: how long a host may be silent.
    why_absent: see `may_come`; asked of first ranks of hosts, which others watch only once the sentinels are there.
    """

    def __init__(
        self,
        met: MeetingResult,
        rank: int,
        store: Store,
        timeout_s: float,
        silent_s: float,
        why_absent: Callable[[int], str],
    ) -> None:
        self._met, self._rank, self._store, self._silent_s, self._why_absent = met, rank, store, silent_s, why_absent
        self._began = time.monotonic()
        self._deadline, self._look_at = self._began + timeout_s, self._began + _CHECK_S
        self._beside = met.hosts.beside(rank)
        self._far: Far | None = None
        self._liveness = RankLiveness(met.arena, here=self._beside)
        self._asked = AskedStore(store, rank, self._deadline, self._look_at_peers)

    def join_sentinels(self) -> Far:
        """Connect this rank to its host's sentinel, which the first rank of the host starts and connects to the others.

        Raises PeerGone if a rank has ended meanwhile, or given up; WaitTimeout if the sentinel of a host does not come.
        """
        met, hosts = self._met, self._met.hosts
        here = hosts.host_of(self._rank)
        if self._rank != self._beside[0]:
            name = self._notice_of(here).socket
        else:
            sentinel, name = Sentinel(met.arena), f"unisono-{os.urandom(16).hex()}"
            try:
                own = SentinelNotice(name, *sentinel.listen(name, met.address))
                self._asked.set(_NOTICE.format(here), write(own))
                addresses = [self._notice_of(host)[1:] for host in range(len(hosts.members))]
                identities = met.identities or {}
                ranks = {one: (identities[one].pid, identities[one].ticks) for one in self._beside}
                sentinel.serve(hosts, here, ranks, addresses, met.secret, self._silent_s, names=met.names)
            except BaseException:
                sentinel.stop()
                raise
        try:
            self._far = Far(met.arena, hosts, self._rank, name, self._silent_s, self._deadline)
        except ConnectionRefusedError as error:
            self._await_cause(time.monotonic())
            raise InternalError(f"the sentinel of host {here} has ended. Standard error has its output.") from error
        self._liveness = RankLiveness(met.arena, here=self._beside, far_left=self._far.left)
        return self._far

    def _notice_of(self, host: int) -> SentinelNotice:
        """The notice of a host's first rank about its sentinel."""
        first, began, late = self._met.hosts.members[host][0], time.monotonic(), False
        waits([first], "to start the sentinel of its host", self._asked.where)
        while (said := self._asked.value(_NOTICE.format(host), _LOOK_S)) is None:
            self._look()
            if late:  # and the notice has not come since: this rank itself may have been stopped
                self._heed_end()
                details = " The sentinel of its host has not started: the rank may have been killed, or stopped."
                raise missing((first,), self._rank, time.monotonic() - began, details)
            late = time.monotonic() > min(self._deadline, began + _START_S)
            if first not in self._beside and (reason := self._why_absent(first)):
                raise ArgumentError(reason)
        return read(SentinelNotice, said, first)

    def connect(self) -> Carrier:
        """Connect this rank to all others: tables that know no hosts send messages within a host, too.

        Raises PeerGone if a rank has ended meanwhile, or given up; WaitTimeout if a rank does not come; PeerFailed if a
        connection cannot be made.
        """
        met, rank, began = self._met, self._rank, time.monotonic()
        waits([peer for peer in range(met.hosts.ranks) if peer != rank], "to connect", met.address)
        self._heed_end()
        left_s = min(LONGEST_S, max(0.0, self._deadline - began))
        store = PrefixStore("messages", self._store)
        try:
            with closing(AskedStore(store, rank, self._deadline, self._look_at_peers)) as asked:
                return UcxCarrier(asked, rank, met.hosts.ranks, met.address, left_s, self._look)
        except (Lost, RuntimeError) as error:
            now = time.monotonic()  # the connection breaks before a sentinel, or the store, says why
            self._await_cause(min(now + self._silent_s, max(now, self._deadline)))
            if not isinstance(error, Lost):  # the transport's error
                raise PeerFailed(rank, f"cannot connect to other hosts: {error}", rank, "init()") from error
            how = f"cannot be reached: {error.reason}"
            if time.monotonic() <= self._deadline:
                raise PeerFailed(error.peer, how, rank, "init()") from error
            raise WaitTimeout("init()", time.monotonic() - began, (error.peer,), rank, f" It {how}.") from error

    def give_up(self, error: BaseException) -> None:
        """Say why there is no group: to the ranks that connect, at the store, and to those that have the group."""
        heard = isinstance(error, PeerGone | WaitTimeout)
        with suppress(UnisonoError):  # the store has gone; the others see that themselves
            self._asked.set_first(_END, write((end_of if heard else gave_up)(error, self._rank)))
            dead = error.failed if isinstance(error, PeerGone) and error.how.how is DepartureKind.DIED else ()
            leave_store(self._store, self._rank, self._met.hosts.ranks - 1 - len(dead))
        if not isinstance(error, PeerGone):  # else the other ranks hear of the gone rank, too
            tell_gave_up(self._met.arena, self._rank, error)
        if self._far is not None:
            self._far.close()

    def close(self) -> None:
        """Ask the store no more."""
        self._asked.close()
        del self._asked  # it refers to this object, which holds the memory of the host

    def _await_cause(self, until: float) -> None:
        """Raise why there is no group, if that is known by this time or soon after."""
        while time.monotonic() < until + _CAUSE_S:
            self._look()
            time.sleep(_LOOK_S)

    def _look(self) -> None:
        """Raise why there is no group, or PeerGone for a rank that has died."""
        dead = self._dead()  # before the look at the store: a process that ends has written there first
        if dead or time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + _CHECK_S
            self._heed_end()
        if dead:
            raise dead

    def _heed_end(self) -> None:
        """Raise why there is no group, if a rank has written that."""
        if (said := self._asked.now(_END)) is not None:
            end = read(MeetingEnd, said, 0, self._met.hosts.ranks)
            if error := why_ended(end, self._rank, time.monotonic() - self._began):
                raise error

    def _look_at_peers(self) -> None:
        """Raise PeerGone for a rank that has died, without a question to the store."""
        if dead := self._dead():
            raise dead

    def _dead(self) -> PeerGone | None:
        """The error for a rank that has died; those of this host first: without them, it may seem cut off. A rank that
        has ended otherwise had connected before, or has written why.
        """
        for peer in (*self._beside, *range(self._met.hosts.ranks)):
            how = self._liveness.left(peer) if peer != self._rank else None
            if how is not None and how.how is DepartureKind.DIED:
                return PeerGone(peer, self._met.arena.board(peer).pid, how, self._rank, "init()", met=False)
        return None
