"""From a meeting to the group of all ranks of several hosts: sentinels and a carrier connect them.

No rank waits until a sentinel has started: its sockets are there before it is. A rank that gives up writes why at the
store, where the others look, as in the meeting: so all name the same rank, and none that has only given up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing

from ...base.config import Config
from ...base.errors import InternalError, PeerFailed, PeerGone, WaitTimeout
from ...base.fd_channel import LONGEST_S
from ...base.records import DepartureKind, digest
from ...engine.carrier import Carrier, Lost
from ...hosts.carriers.ucx import UcxCarrier
from ...hosts.carriers.ucx_library import ucx_library
from ...hosts.far import Far
from ...hosts.sentinel.start import Sentinel
from ...hosts.span import Span
from ...observe.live.meeting_page import waits
from ..rendezvous.entries import SentinelNotice, read, write
from ..rendezvous.meeting import MeetingResult, tell_gave_up
from ..rendezvous.participant import Participant
from ..rendezvous.rendezvous_messages import end_of, gave_up, missing
from .group import Group
from .rank_liveness import RankLiveness

_LOOK_S = 0.1  # how often a rank that connects looks for ranks that have died or given up
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
    with closing(_Connecting(met, rank, timeout_s, config.host_silence_s, why_absent)) as connecting:
        try:
            ucx_library()  # raises NoUcx, before this rank can hear that another one has none
            far, carrier = connecting.join_sentinels(), connecting.connect()
            here = met.names[met.hosts.host_of(rank)] if met.names else ""
            gid = digest("world", met.secret)
            span = Span(met.hosts, rank, gid, carrier, far, here)
            return Group(met.arena, rank, name=name, config=config, gid=gid, span=span)
        except BaseException as error:
            connecting.give_up(error)
            raise


class _Connecting(Participant):
    """One rank's part from the meeting to the group.

    silent_s: how long a host may be silent.
    """

    end = "not connected"

    def __init__(
        self, met: MeetingResult, rank: int, timeout_s: float, silent_s: float, why_absent: Callable[[int], str]
    ) -> None:
        if met.store is None:
            raise InternalError("ranks of several hosts met without a store")
        super().__init__(rank, met.hosts.ranks, met.store, timeout_s, why_absent)
        self._met, self._silent_s, self._look_at = met, silent_s, 0.0
        self._beside = met.hosts.beside(rank)
        self._watched = (*self._beside, *range(self._size))  # without those of this host, it may seem cut off
        self._far: Far | None = None
        self._liveness = RankLiveness(met.arena, here=self._beside)

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
                self._store.set(f"sentinel {here}", write(own))
                addresses = [self._notice_of(host)[1:] for host in range(len(hosts.members))]
                boards = {one: met.arena.board(one) for one in self._beside}
                ranks = {one: (board.pid, board.ticks) for one, board in boards.items()}
                sentinel.serve(hosts, here, ranks, addresses, met.secret, self._silent_s, names=met.names)
            except BaseException:
                sentinel.stop()
                raise
        try:
            self._far = Far(met.arena, hosts, self._rank, name, self._silent_s, self._deadline)
        except ConnectionRefusedError as error:
            self._await_reason(time.monotonic() + _CAUSE_S)
            raise InternalError(f"the sentinel of host {here} has ended. Standard error has its output.") from error
        self._liveness = RankLiveness(met.arena, here=self._beside, far_left=self._far.left)
        return self._far

    def _notice_of(self, host: int) -> SentinelNotice:
        """The notice of a host's first rank about its sentinel."""
        first = self._met.hosts.members[host][0]
        return read(SentinelNotice, self._await(f"sentinel {host}", first, _START_S), first)

    def _stop_waiting(self, key: str, teller: int) -> bytes:
        self._look()
        if (said := self._store.now(key)) is not None:  # this rank itself may have been stopped
            return said
        details = " The sentinel of its host has not started: the rank may have been killed, or stopped."
        raise missing((teller,), self._rank, time.monotonic() - self._start, details)

    def connect(self) -> Carrier:
        """Connect this rank to all others: tables that know no hosts send messages within a host, too.

        Raises PeerGone if a rank has ended meanwhile, or given up; WaitTimeout if a rank does not come; PeerFailed if a
        connection cannot be made.
        """
        met, rank, began = self._met, self._rank, time.monotonic()
        waits([peer for peer in range(met.hosts.ranks) if peer != rank], "to connect", met.address)
        left_s = min(LONGEST_S, max(0.0, self._deadline - began))
        try:
            return UcxCarrier(self._store, rank, met.hosts.ranks, met.address, left_s, self._look_at_times)
        except (Lost, RuntimeError) as error:
            now = time.monotonic()  # the connection breaks before a sentinel, or the store, says why
            self._await_reason(min(now + self._silent_s, max(now, self._deadline)) + _CAUSE_S)
            if not isinstance(error, Lost):  # the transport's error
                raise PeerFailed(rank, f"cannot connect to other hosts: {error}", rank, "init()") from error
            how = f"cannot be reached: {error.reason}"
            if time.monotonic() <= self._deadline:
                raise PeerFailed(error.peer, how, rank, "init()") from error
            raise WaitTimeout("init()", time.monotonic() - began, (error.peer,), rank, f" It {how}.") from error

    def give_up(self, error: BaseException) -> None:
        """Say why there is no group: to the ranks that connect, at the store, and to those that have the group."""
        heard = isinstance(error, PeerGone | WaitTimeout)
        self._give_up((end_of if heard else gave_up)(error, self._rank))
        if not isinstance(error, PeerGone):  # else the other ranks hear of the gone rank, too
            tell_gave_up(self._met.arena, self._rank, error)
        if self._far is not None:
            self._far.close()

    def _look_at_times(self) -> None:
        if time.monotonic() > self._look_at:
            self._look()
            self._look_at = time.monotonic() + _LOOK_S

    def _death(self, rank: int) -> PeerGone | None:
        """A rank that has ended otherwise had connected before, or has written why."""
        how = self._liveness.left(rank) if rank != self._rank else None
        if how is None or how.how is not DepartureKind.DIED:
            return None
        return PeerGone(rank, self._met.arena.board(rank).pid, how, self._rank, "init()", met=False)
