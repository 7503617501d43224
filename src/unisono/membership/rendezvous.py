"""How processes that a launcher started find each other, and which of them come to share memory.

They meet at a key-value store, where each says who it is: torch's, or where the launcher gives no port a `SocketStore`.
Rank 0 says which ranks seem to share a host. The first rank of each host makes an arena, and publishes the random name
of a Unix socket, through which it hands the arena's file descriptor to the others: a descriptor arrives only within one
host, so who has got it is on that host, and who has not is a host of its own. What is read at the store (`notices`) is
not believed: the kernel says to whom the descriptor goes, and from whom it comes (`handover`).
"""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from ..config import Config
from ..engine.arena import Arena
from ..engine.board import MAX_RANKS
from ..engine.process import start_ticks
from ..errors import ArgumentError, OutOfMemory, PeerGone, WaitTimeout
from ..records import Departure, DepartureKind
from ..schedule import Hosts
from .addresses import is_loopback, own_address, store_host
from .handover import Handover, fetch
from .identity import Identity
from .local_sockets import listen
from .met import Met
from .notices import MeetingVerdict, read_identity, write_identity
from .placing import common_settings, host_names, place, remark, way_between, why_refused
from .socket_store import SocketStore
from .stores import Store

__all__ = ["meet"]

_ASK_S = 0.005
_CHECK_S = 0.05
"""How often to look whether the ranks that have come are still there."""
_REASON_S = 1.0
"""How much longer to wait for the reason why there is no group: rank 0's time may be up a little later."""
_MOST_WORDS = 4_000


def meet(rank: int, size: int, store: Store, timeout_s: float, config: Config | None = None) -> Met:
    """Meet the `size` ranks at this store.

    Raises WaitTimeout, naming the ranks that did not come; PeerGone for one that died meanwhile; ArgumentError on every
    rank where they cannot form a group: threads of one process, hosts with different versions or settings, or that have
    no way to each other; OutOfMemory on every rank; ArgumentError for what no rank would have written to the store.
    """
    if size > MAX_RANKS:
        raise ArgumentError(f"a group has 1 to {MAX_RANKS} ranks, not {size}")
    return _Meeting(rank, size, store, timeout_s, config or Config.from_env()).hold()


class _Meeting:
    """One rank's part. What is at the store: `rank 3`, who each rank is; `verdict`, by rank 0, which ranks may share a
    host; `host 4`, by the first rank of a host, where it hands out its memory; `apart 5`, by a rank that did not get
    it; `proven 4`, by the first rank of a host, who did; `hosts`, by rank 0, how it has turned out.
    """

    def __init__(self, rank: int, size: int, store: Store, timeout_s: float, config: Config) -> None:
        self._rank, self._size, self._store, self._config = rank, size, store, config
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._check_at = 0.0
        self._apart: set[int] = set()
        address = "" if isinstance(store, SocketStore) else own_address(store_host(store))
        own = replace(Identity.mine(), common=common_settings(config), address=address)
        self._identities = {rank: own}
        with self._at_store():
            store.set(f"rank {rank}", write_identity(own))

    def hold(self) -> Met:
        """Take part until all is known."""
        self._identities[0] = self._identity(0)
        hosts = self._place() if self._rank == 0 else Hosts(self._hear("verdict").hosts)
        first, *others = hosts.beside(self._rank)
        arena, verdict = self._follow(first) if self._rank > first else self._lead(others, hosts)
        hosts = Hosts(verdict.hosts)
        if not hosts.spans or isinstance(self._store, SocketStore):
            return Met(arena, hosts)
        beside = {rank: one for rank, one in self._identities.items() if rank in hosts.beside(self._rank)}
        arena.neighbours = verdict.neighbours[hosts.host_of(self._rank)]
        address = beside[self._rank].address
        if verdict.toward and is_loopback(address):
            address = own_address(verdict.toward)
        secret = bytes.fromhex(verdict.secret)
        return Met(arena, hosts, self._store, beside, verdict.names, address, secret)

    def _place(self) -> Hosts:
        """Rank 0's part: gather the identities, judge them, say who may share a host."""
        try:
            for rank in range(1, self._size):
                self._identities[rank] = self._identity(rank)
                self._refuse(why_refused(self._identities))
            hosts = place(self._identities)
            self._way_between(hosts)
        except BaseException as error:
            self._give_up("verdict", error)
            raise
        self._tell("verdict", MeetingVerdict(hosts=hosts.members))
        return hosts

    def _lead(self, others: Sequence[int], hosts: Hosts) -> tuple[Arena, MeetingVerdict]:
        """The part of a host's first rank: hand the memory out, say who has it, hear how it is elsewhere."""
        with ExitStack() as until_told:
            try:
                arena = Arena.create(self._size, self._config)
                try:
                    handover = self._hand_out(arena, others, until_told)
                    verdict = self._judge(hosts) if self._rank == 0 else self._report(others)
                    handover.tell(verdict.text())
                except BaseException:
                    arena.close()
                    raise
            except BaseException as error:
                self._give_up("hosts" if self._rank == 0 else f"proven {self._rank}", error)
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
                if missing := handover.serve(self._deadline, self._look):
                    raise self._timeout(missing)
        return handover

    def _look(self, missing: Iterable[int]) -> list[int]:
        """Which of the missing ranks of this host do not get its memory. Raises if one has died, or all is over."""
        self._check_peers(missing)
        with self._at_store():
            self._heed_the_end()
            refused = [rank for rank in missing if self._store.check([f"apart {rank}"])]
        for rank in refused:
            self._hear(f"apart {rank}", rank)
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
            return MeetingVerdict(hosts=hosts.members)
        names = host_names(self._identities, hosts)
        on_machine = Counter(one.boot for one in self._identities.values())
        neighbours = tuple(on_machine[self._identities[host[0]].boot] for host in hosts.members)
        secret = secrets.token_hex(32)
        verdict = MeetingVerdict(hosts.members, names=names, neighbours=neighbours, secret=secret, toward=toward)
        self._tell("hosts", verdict)
        sys.stderr.write(remark(self._identities, hosts, self._apart))
        return verdict

    def _report(self, others: Iterable[int]) -> MeetingVerdict:
        """Say who has this host's memory; hear who is on which host."""
        proven = (self._rank, *(rank for rank in others if rank not in self._apart))
        self._tell(f"proven {self._rank}", MeetingVerdict(proven=proven))
        return self._hear("hosts")

    def _follow(self, first: int) -> tuple[Arena, MeetingVerdict]:
        """Everybody else's part: fetch the memory from the host's first rank, or be a host of its own."""
        self._identities[first] = self._identity(first)
        name = self._hear(f"host {first}", first).name
        try:
            arena, word = fetch(name, first, self._identities[first], self._rank, self._deadline)
            return arena, MeetingVerdict.read(word.encode(), self._size, first)
        except (ConnectionRefusedError, PermissionError):
            self._check_peers([first])
        except (EOFError, OSError) as error:
            self._check_peers([first])
            self._deadline = max(self._deadline, time.monotonic() + _REASON_S)
            self._hear("hosts")
            raise self._timeout([first]) from error
        try:
            arena = Arena.create(self._size, self._config)
        except OutOfMemory as error:
            self._give_up(f"apart {self._rank}", error)
            raise
        self._tell(f"apart {self._rank}", MeetingVerdict(proven=(self._rank,)))
        return arena, self._hear("hosts")

    def _refuse(self, reason: str) -> None:
        if reason:
            raise ArgumentError(reason)

    def _way_between(self, hosts: Hosts) -> str:
        """An address on the way between hosts. Raises ArgumentError where there is none, and more than one host."""
        if not hosts.spans:
            return ""
        if isinstance(self._store, SocketStore):
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

    def _give_up(self, key: str, error: BaseException) -> None:
        """Tell the others why there is no group."""
        match error:
            case WaitTimeout():
                verdict = MeetingVerdict(missing=error.missing)
            case PeerGone():
                verdict = MeetingVerdict(dead=(error.rank,))
            case OutOfMemory():
                verdict = MeetingVerdict(full=f"rank {self._rank}: {error}"[:_MOST_WORDS])
            case ArgumentError():
                verdict = MeetingVerdict(reason=str(error)[:_MOST_WORDS])
            case _:
                words = f"rank {self._rank} gave up init(): {type(error).__qualname__}: {error}"
                verdict = MeetingVerdict(reason=words[:_MOST_WORDS])
        with suppress(RuntimeError):  # the store has gone; this rank says so itself
            self._store.set(key, verdict.text())

    def _hear(self, key: str, teller: int = 0) -> MeetingVerdict:
        """What a rank has told. Raises if that is why there is no group."""
        verdict = MeetingVerdict.read(self._get(key, teller), self._size, teller)
        if verdict.reason:
            raise ArgumentError(verdict.reason)
        if verdict.full:
            raise OutOfMemory(verdict.full)
        if verdict.missing:
            raise self._timeout(list(verdict.missing))
        if verdict.dead:
            raise self._gone(verdict.dead[0], self._identity(verdict.dead[0]))
        return verdict

    def _heed_the_end(self) -> None:
        """Raise what rank 0 has told everybody, if that is why there is no group."""
        if self._rank and self._store.check(["hosts"]):
            self._hear("hosts")

    def _identity(self, rank: int) -> Identity:
        return self._identities.get(rank) or read_identity(rank, self._get(f"rank {rank}", rank))

    def _get(self, key: str, teller: int) -> bytes:
        """What the store has under a key, once it is there. Polls: the `wait` of torch's stores ignores Ctrl-C."""
        with self._at_store():
            while not self._store.check([key]):
                now = time.monotonic()
                if now >= self._deadline:
                    raise self._timeout(self._absent() or [teller])
                if now >= self._check_at:
                    self._check_at = now + _CHECK_S
                    self._check_peers(self._identities)
                    self._heed_the_end()
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
            if rank == self._rank or there is None or there.place != home.place:
                continue  # it has not come, or cannot be seen from here
            if start_ticks(there.pid) != there.ticks:
                raise self._gone(rank, there)

    def _gone(self, rank: int, identity: Identity) -> PeerGone:
        return PeerGone(rank, identity.pid, Departure(DepartureKind.DIED, "died"), self._rank, "init()")

    def _absent(self) -> list[int]:
        """Who has not come yet."""
        return [rank for rank in range(self._size) if not self._store.check([f"rank {rank}"])]

    def _timeout(self, missing: Sequence[int], details: str = "") -> WaitTimeout:
        return WaitTimeout("init()", time.monotonic() - self._start, missing, self._rank, details)
