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
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError, WaitTimeout
from ...engine.memory.arena import Arena
from ...engine.memory.board import MAX_RANKS
from ...engine.memory.meeting_page import meeting_page, waits
from ...engine.process.alive import start_ticks
from ...hosts.addresses import is_loopback, own_address, store_host
from ...schedule import Hosts
from .asked_store import AskedStore, at_store
from .handover import Handover, fetch
from .identity import Identity
from .local_sockets import listen
from .meeting_result import MeetingResult
from .meetings import END
from .rendezvous_messages import MeetingVerdict, read_identity, write_identity
from .socket_store import SocketStore
from .stores import Store
from .topology import common_settings, host_names, place, remark, way_between, why_refused
from .unmet import died, missing, twice, verdict_of, why_ended

_ASK_S = 0.005
_CHECK_S = 0.05
"""How often to look whether the ranks that have come are still there."""
_SAY_S = 1.0
"""How often rank 0 looks which ranks have not come, to say so on its page."""
_TO_DO = {
    "rank": "to come",
    "verdict": "to say which ranks share a host",
    "host": "to hand out the memory of their host",
    "proven": "to say which ranks have the memory of their host",
    END: "to say how the meeting has ended",
}
"""What the rank has to do that is waited for, by the first word of the key."""
_REASON_S = 1.0
"""How much longer to wait for the reason why there is no group: rank 0's time may be up a little later. And how long
rank 0, whose process may run the store, waits until the others have heard the reason.
"""
_LATE_S = 3.0
"""The same, for ranks that come later and would fail likewise."""


def meet(rank: int, size: int, store: Store, timeout_s: float, config: Config | None = None) -> MeetingResult:
    """Meet the `size` ranks at this store.

    Raises WaitTimeout, naming the ranks that did not come; PeerGone for one that died meanwhile; ArgumentError on every
    rank where they cannot form a group: threads of one process, hosts with different versions or settings, or that have
    no way to each other; OutOfMemory on every rank; ArgumentError for what no rank would have written to the store.
    """
    if size > MAX_RANKS:
        raise ArgumentError(f"a group has 1 to {MAX_RANKS} ranks, not {size}")
    with meeting_page(rank, size):
        meeting = _Meeting(rank, size, store, timeout_s, config or Config.from_env())
        try:
            return meeting.hold()
        finally:
            meeting.close()


class _Meeting:
    """One rank's part. What is at the store: `rank 3`, who each rank is; `verdict`, by rank 0, which ranks may share a
    host; `host 4`, by the first rank of a host, where it hands out its memory; `apart 5`, by a rank that did not get
    it; `proven 4`, by the first rank of a host, who did; `end`, by rank 0, how it has turned out, or, by the first rank
    that gives up, why there is no group; `told 5`, by a rank that has heard that.

    A rank tells why it gives up before its process ends, and a rank that sees another's end looks first what has been
    told: so all name the rank that has failed first.
    """

    def __init__(self, rank: int, size: int, store: Store, timeout_s: float, config: Config) -> None:
        self._rank, self._size, self._met_at, self._config = rank, size, store, config
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._check_at = 0.0
        self._apart: set[int] = set()
        self._leads = rank == 0
        address = "" if isinstance(store, SocketStore) else own_address(store_host(store))
        own = replace(Identity.mine(), common=common_settings(config), address=address)
        self._identities = {rank: own}
        self._store = (
            store if isinstance(store, SocketStore) else AskedStore(store, self._deadline, self._look_at_peers)
        )
        self._where = self._store.where

    def close(self) -> None:
        """End the thread that asks the store. The store itself stays."""
        if isinstance(self._store, AskedStore):
            self._store.close()

    def hold(self) -> MeetingResult:
        """Take part until all is known."""
        self._come()
        try:
            return self._take_part()
        except BaseException as error:
            self._give_up(error)
            raise

    def _come(self) -> None:
        """Say who this rank is. Raises ArgumentError if another process has come as this rank."""
        own = self._identities[self._rank]
        with self._at_store():
            said = self._store.set_first(f"rank {self._rank}", write_identity(own))
        there = read_identity(self._rank, said)
        if (there.place, there.pid, there.ticks) != (own.place, own.pid, own.ticks):
            raise twice(self._where, self._rank, f"process {there.pid} on {there.where}")

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
            arena, word = fetch(name, first, self._identities[first], self._rank, self._deadline)
            return arena, MeetingVerdict.read(word.encode(), self._size, first)
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

    def _tell(self, key: str, verdict: MeetingVerdict) -> None:
        with self._at_store():
            self._store.set(key, verdict.text())

    def _end(self, verdict: MeetingVerdict) -> MeetingVerdict:
        """Rank 0's last word. Raises if another rank has ended the meeting."""
        with self._at_store():
            said = self._store.set_first(END, verdict.text())
        return self._heed(MeetingVerdict.read(said, self._size))

    def _give_up(self, error: BaseException) -> None:
        """Tell the others why there is no group, and, where this rank's process may run the store, wait until they have
        heard it.
        """
        self._tell_why(error)
        if isinstance(self._store, SocketStore):
            return  # what has been told arrives, also when the store has gone
        with suppress(UnisonoError, RuntimeError, TimeoutError):
            if self._rank:
                self._store.set(f"told {self._rank}", "")
            else:
                self._until_told(late=not isinstance(error, WaitTimeout))

    def _tell_why(self, error: BaseException) -> None:
        """Tell the others why there is no group, if that is not known. A rank that waits for its first rank no longer
        just leaves: it may come again, as long as the meeting has not ended.
        """
        if not isinstance(error, WaitTimeout) or self._leads:
            with suppress(UnisonoError, RuntimeError, TimeoutError):  # the store has gone; this rank says so itself
                self._store.set_first(END, verdict_of(error, self._rank).text())

    def _until_told(self, *, late: bool) -> None:
        """Wait until all ranks that have come know why there is no group, or have gone. late: also for the others."""
        until = time.monotonic() + (_LATE_S if late else _REASON_S)
        left = set(range(1, self._size))
        while left and time.monotonic() < until:
            left = {rank for rank in left if self._waits_still(rank, late=late)}
            time.sleep(_ASK_S)

    def _waits_still(self, rank: int, *, late: bool) -> bool:
        if self._store.check([f"told {rank}"]):
            return False
        if not self._store.check([f"rank {rank}"]):
            return late
        there = self._identities.get(rank) or read_identity(rank, self._store.get(f"rank {rank}"))
        return there.place != self._home.place or start_ticks(there.pid) == there.ticks

    def _hear(self, key: str, teller: int = 0) -> MeetingVerdict:
        """What a rank has told. Raises if that is why there is no group."""
        return self._heed(MeetingVerdict.read(self._get(key, teller), self._size, teller))

    def _heed(self, verdict: MeetingVerdict) -> MeetingVerdict:
        pids = {rank: self._identity(rank).pid for rank in verdict.dead[:1]}
        if error := why_ended(verdict, self._rank, time.monotonic() - self._start, pids):
            raise error
        return verdict

    def _heed_the_end(self) -> None:
        """Raise what a rank has told everybody, if that is why there is no group."""
        if self._store.check([END]):
            self._heed(MeetingVerdict.read(self._store.get(END), self._size))

    def _await_reason(self) -> None:
        """Raise the reason why there is no group, if it is told soon."""
        until = time.monotonic() + _REASON_S
        with self._at_store():
            while time.monotonic() < until:
                self._heed_the_end()
                time.sleep(_ASK_S)

    def _identity(self, rank: int) -> Identity:
        return self._identities.get(rank) or read_identity(rank, self._get(f"rank {rank}", rank))

    def _get(self, key: str, teller: int) -> bytes:
        """What the store has under a key, once it is there. Polls: the `wait` of torch's stores ignores Ctrl-C."""
        say_at = time.monotonic() + _SAY_S
        waits([teller], _TO_DO[key.partition(" ")[0]], self._where)
        with self._at_store():
            while not self._store.check([key]):
                now = time.monotonic()
                if now >= self._deadline:
                    absent = self._absent()
                    if not absent and self._rank:
                        self._await_reason()
                    raise self._timeout(absent or [teller])
                if now >= self._check_at:
                    self._check_at = now + _CHECK_S
                    self._check_peers(self._identities)
                    self._heed_the_end()
                if self._rank == 0 and key == f"rank {teller}" and now >= say_at:
                    say_at = now + _SAY_S
                    waits(self._absent(), _TO_DO["rank"], self._where)
                time.sleep(_ASK_S)
            return self._store.get(key)

    def _at_store(self) -> AbstractContextManager[None]:
        """Where the store has gone, say which rank has died, or that no rank waits for it any longer."""
        return at_store(self._where, self._rank, self._start, self._look_why)

    def _look_why(self) -> None:
        """Raise why the store has gone, if that is known: what has been told last arrives at sockets, or a death."""
        if isinstance(self._store, SocketStore):
            with suppress(RuntimeError):  # it has told nothing
                self._heed_the_end()
        self._look_at_peers()

    def _look_at_peers(self) -> None:
        """Raise PeerGone for a rank that has died, as far as this can be seen without the store."""
        for rank in self._identities:
            if self._has_died(rank):
                raise died(rank, self._identities[rank].pid, self._rank)

    def _check_peers(self, ranks: Iterable[int]) -> None:
        """Raise PeerGone if the process of another of these ranks has ended, unless it has told why."""
        for rank in ranks:
            if self._has_died(rank):
                try:
                    self._heed_the_end()
                except (RuntimeError, TimeoutError) as error:
                    if isinstance(error, WaitTimeout):
                        raise
                    # else the store has gone with it
                raise died(rank, self._identities[rank].pid, self._rank)

    def _has_died(self, rank: int) -> bool:
        """Has the process of another rank ended, as far as it has come, and can be seen from here?"""
        there = self._identities.get(rank)
        if rank == self._rank or there is None or there.place != self._home.place:
            return False
        return start_ticks(there.pid) != there.ticks

    @property
    def _home(self) -> Identity:
        return self._identities[self._rank]

    def _absent(self) -> list[int]:
        """Who has not come yet."""
        return [rank for rank in range(self._size) if not self._store.check([f"rank {rank}"])]

    def _timeout(self, ranks: Sequence[int]) -> WaitTimeout:
        return missing(tuple(ranks), self._rank, time.monotonic() - self._start)
