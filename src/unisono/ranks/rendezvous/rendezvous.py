"""How processes that a launcher started find each other, and which of them come to share memory.

They meet at a key-value store, where each says who it is: torch's, or where the launcher gives no port a `SocketStore`.
Rank 0 says which ranks seem to share a host. The first rank of each host makes an arena, and publishes the random name
of a Unix socket, through which it hands the arena's file descriptor to the others: a descriptor arrives only within one
host, so who has got it is on that host, and who has not is a host of its own. What is read at the store
(`rendezvous_messages`) is not believed: the kernel says to whom the descriptor goes, and from whom it comes
(`handover`).
"""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError, WaitTimeout
from ...engine.memory.arena import Arena
from ...engine.memory.board import MAX_RANKS
from ...engine.memory.meeting_page import meeting_page, waits
from ...hosts.addresses import is_loopback, own_address
from ...schedule import Hosts
from .handover import Handover, fetch
from .local_sockets import listen
from .meeting_member import MeetingMember
from .meeting_result import MeetingResult
from .meetings import END, may_come
from .rendezvous_messages import MeetingVerdict
from .socket_store import SocketStore
from .stores import MeetingPlace, Store
from .topology import host_names, place, remark, way_between, why_refused
from .which_rank import Launch


def meet(
    rank: int,
    size: int,
    store: Store,
    timeout_s: float,
    config: Config | None = None,
    why_absent: Callable[[int], str] = may_come,
) -> MeetingResult:
    """Meet the `size` ranks at this store. why_absent: see `meetings.may_come`.

    Raises WaitTimeout, naming the ranks that did not come; PeerGone for one that died meanwhile; ArgumentError on every
    rank that comes where they cannot form a group: threads of one process, a rank that will not come, hosts with
    different versions or settings, or that have no way to each other; OutOfMemory on every rank; ArgumentError for what
    no rank would have written to the store.
    """
    if size > MAX_RANKS:
        raise ArgumentError(f"a group has 1 to {MAX_RANKS} ranks, not {size}")
    with meeting_page(rank, size):
        meeting = _Meeting(rank, size, store, timeout_s, config or Config.from_env(), why_absent)
        try:
            return meeting.hold()
        finally:
            meeting.close()


class _Meeting(MeetingMember):
    """One rank's part."""

    def __init__(
        self, rank: int, size: int, store: Store, timeout_s: float, config: Config, why_absent: Callable[[int], str]
    ) -> None:
        super().__init__(rank, size, store, timeout_s, config, why_absent)
        self._config = config
        self._apart: set[int] = set()

    def hold(self) -> MeetingResult:
        """Take part until all is known."""
        self._come()
        try:
            return self._take_part()
        except BaseException as error:
            self._give_up(error)
            raise

    def _take_part(self) -> MeetingResult:
        self._identities[0] = self._identity(0)
        hosts = self._place() if self._rank == 0 else Hosts(self._hear("verdict").hosts)
        first, *others = hosts.beside(self._rank)
        self._leads = self._rank == first
        arena, verdict = self._follow(first) if self._rank > first else self._lead(others, hosts)
        hosts = Hosts(verdict.hosts)
        if not hosts.spans or isinstance(self._met_at, SocketStore):
            return MeetingResult(arena, hosts)
        beside = {rank: one for rank, one in self._identities.items() if rank in hosts.beside(self._rank)}
        arena.neighbours = verdict.neighbours[hosts.host_of(self._rank)]
        address = beside[self._rank].address
        if verdict.toward and is_loopback(address):
            address = own_address(verdict.toward)
        secret = bytes.fromhex(verdict.secret)
        return MeetingResult(arena, hosts, self._met_at, beside, verdict.names, address, secret)

    def _place(self) -> Hosts:
        """Rank 0's part: gather the identities, judge them, say who may share a host."""
        for rank in range(1, self._size):
            self._identities[rank] = self._identity(rank)
            self._refuse(why_refused(self._identities))
        hosts = place(self._identities)
        self._way_between(hosts)
        self._tell("verdict", MeetingVerdict(hosts=hosts.members))
        return hosts

    def _lead(self, others: Sequence[int], hosts: Hosts) -> tuple[Arena, MeetingVerdict]:
        """The part of a host's first rank: hand the memory out, say who has it, hear how it is elsewhere."""
        arena = Arena.create(self._size, self._config)
        with ExitStack() as until_told:
            try:
                handover = self._hand_out(arena, others, until_told)
                verdict = self._judge(hosts) if self._rank == 0 else self._report(others)
                handover.tell(verdict.text())
            except BaseException as error:
                arena.close()
                self._tell_why(error)  # before the others see their connections end
                raise
        return arena, verdict

    def _hand_out(self, arena: Arena, others: Sequence[int], until_told: ExitStack) -> Handover:
        name = f"unisono-{secrets.token_hex(16)}"
        for rank in others:
            self._identities[rank] = self._identity(rank)
        with listen(name) as listener:
            handover = Handover(arena.fd, listener, {rank: self._identities[rank] for rank in others})
            until_told.callback(handover.close)
            if others:
                self._tell(f"host {self._rank}", MeetingVerdict(name=name))
                waits(others, "to take the memory of their host", self._where)
                if absent := handover.serve(self._deadline, self._look):
                    raise self._timeout(absent)
        for rank in {self._rank, *others} - self._apart:  # it may die before it can say so itself
            arena.board(rank).set_process(self._identities[rank].pid, self._identities[rank].ticks)
        return handover

    def _look(self, missing: Iterable[int]) -> list[int]:
        """Which of the missing ranks of this host do not get its memory. Raises if one has died, or all is over."""
        self._check_peers(missing)
        with self._at_store():
            self._heed_the_end()
            refused = [rank for rank in missing if self._store.check([f"apart {rank}"])]
        self._apart.update(refused)
        return refused

    def _judge(self, hosts: Hosts) -> MeetingVerdict:
        """Rank 0's part, when its host is complete: hear of the others, and tell everybody."""
        for first, *others in hosts.members[1:]:
            self._apart.update({*others} - {*self._hear(f"proven {first}", first).proven})
        self._refuse(why_refused(self._identities, self._apart))
        hosts = place(self._identities, self._apart)
        toward = self._way_between(hosts)
        if not hosts.spans:
            return self._end(MeetingVerdict(hosts=hosts.members))
        names = host_names(self._identities, hosts)
        on_machine = Counter(one.boot for one in self._identities.values())
        neighbours = tuple(on_machine[self._identities[host[0]].boot] for host in hosts.members)
        secret = secrets.token_hex(32)
        verdict = MeetingVerdict(hosts.members, names=names, neighbours=neighbours, secret=secret, toward=toward)
        self._end(verdict)
        sys.stderr.write(remark(self._identities, hosts, self._apart))
        return verdict

    def _report(self, others: Iterable[int]) -> MeetingVerdict:
        """Say who has this host's memory; hear who is on which host."""
        proven = (self._rank, *(rank for rank in others if rank not in self._apart))
        self._tell(f"proven {self._rank}", MeetingVerdict(proven=proven))
        return self._hear(END)

    def _follow(self, first: int) -> tuple[Arena, MeetingVerdict]:
        """Everybody else's part: fetch the memory from the host's first rank, or be a host of its own."""
        self._identities[first] = self._identity(first)
        name = self._hear(f"host {first}", first).name
        waits([first], "to hand out the memory of their host", self._where)
        try:
            home = self._identities[first]
            arena, word = fetch(name, first, home, self._rank, self._deadline, partial(self._last_word, first))
            return arena, MeetingVerdict.read(word.encode(), self._size, first)
        except UnisonoError:
            raise
        except (ConnectionRefusedError, PermissionError):
            self._check_peers([first])
        except (EOFError, OSError) as error:
            self._await_reason()
            self._check_peers([first])
            raise self._timeout([first]) from error
        arena = Arena.create(self._size, self._config)
        self._tell(f"apart {self._rank}", MeetingVerdict(proven=(self._rank,)))
        verdict = self._hear(END)
        if Hosts(verdict.hosts).beside(self._rank)[0] != self._rank:
            raise self._timeout([self._rank])  # it has come again, and was counted as it came first
        return arena, verdict

    def _last_word(self, first: int, _error: Exception) -> str:
        """How the meeting has ended, as the first rank of this host does not say it. That rank counts on this one."""
        self._await_reason()
        self._check_peers([first])
        return self._leave(self._timeout([first])).decode()

    def _refuse(self, reason: str) -> None:
        if reason:
            raise ArgumentError(reason)

    def _way_between(self, hosts: Hosts) -> str:
        """An address on the way between hosts. Raises ArgumentError where there is none, and more than one host."""
        if not hosts.spans:
            return ""
        if isinstance(self._met_at, SocketStore):
            rank = hosts.members[1][0]
            raise ArgumentError(
                f"rank {rank} ({self._identities[rank].where}) does not share memory with rank 0, and nothing tells "
                "them where else to meet: set MASTER_ADDR, to an address of rank 0's host, and MASTER_PORT"
            )
        toward, reason = way_between(self._identities)
        self._refuse(reason)
        return toward


_RETRY_S = 0.005

_timed_out: set[Launch] = set()
"""The launches whose last call, by this process, has ended by a time-out."""


def meet_in_rounds(place: MeetingPlace, config: Config | None = None) -> MeetingResult:
    """Meet the ranks of a launch at this place. Raises as `open_store` and `meet` do.

    A meeting ends for all ranks when somebody's time is up on whom the others count. A rank that is in its first call
    of `init()` then hears at once who is missing. A rank that makes the call once more may do so while others are still
    in their first: a time-out of theirs says nothing about its own call, so it waits for the next meeting, until its
    own time is up.
    """
    launch, began = place.launch, time.monotonic()
    again = launch in _timed_out
    _timed_out.discard(launch)
    missing: tuple[int, ...] = ()
    while True:
        entered = False
        try:
            store = place.enter()
            entered = True
            return meet(launch.rank, launch.size, store, place.deadline - time.monotonic(), config)
        except WaitTimeout as error:
            now = time.monotonic()
            if again and now < place.deadline:
                missing = tuple(rank for rank in error.missing if rank != launch.rank)
                time.sleep(_RETRY_S)
                continue
            _timed_out.add(launch)
            if not entered and missing:  # rank 0 may have given up because of these
                raise WaitTimeout(error.call, now - began, missing, launch.rank, error.details) from error
            raise WaitTimeout(error.call, now - began, error.missing, launch.rank, error.details) from error
