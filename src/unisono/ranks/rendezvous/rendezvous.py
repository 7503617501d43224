"""How processes that a launcher started find each other, and which of them share memory.

They meet at a key-value store: torch's, or a `SocketStore` if the launcher gives no port. There, each process writes
its identity. Rank 0 says which ranks seem to share a host. The first rank of each host makes an arena, and publishes
the random name of a Unix socket. Through the socket it hands the arena's file descriptor to the others. A descriptor
arrives only within one host: so a rank that gets it is on this host, and a rank that does not is a host of its own.
Ranks do not trust the store (`rendezvous_messages`): the kernel says which processes send and get the descriptor
(`handover`).
"""

import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed import Store as TorchStore  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError, WaitTimeout
from ...base.fd_channel import listen
from ...base.linux import MEMBARRIER
from ...base.python import tell
from ...engine.memory.arena import Arena
from ...engine.memory.board import MAX_RANKS
from ...engine.memory.meeting_page import meeting_page, waits, waits_still
from ...engine.process.alive import start_ticks
from ...hosts.addresses import is_loopback, own_address
from ...hosts.sentinel.start import Sentinel
from ...schedule import Hosts
from .handover import Handover, fetch
from .identity import Identity, host_names, place, remark, way_between, why_refused
from .meeting_member import MeetingMember
from .meetings import END, may_come
from .rendezvous_messages import MeetingMessage
from .socket_store import SocketStore
from .stores import MeetingPlace, Store
from .which_rank import Launch

_LOOPBACK = "127.0.0.1"

_REGISTER_GLOBAL_EXPEDITED = 4  # of linux/membarrier.h
_RETRY_S = 0.005

_timed_out: "set[Launch]" = set()  # the launches with a time-out in this process's last call


class MeetingResult(NamedTuple):
    """The memory of a rank's host, and on several hosts what it takes to speak to the others.

    On one host, only arena and hosts are set.

    hosts: which ranks share memory.
    store: where all ranks can leave messages for each other.
    identities: on the first rank of this host, of all its ranks; on other ranks at least their own.
    names: the names of the hosts.
    address: where other hosts reach this process.
    secret: only the ranks know it.
    sentinel: on the first rank of this host, its sentinel, which starts; None: it has not been started yet.
    """

    arena: Arena
    hosts: Hosts
    store: TorchStore | None = None
    identities: Mapping[int, Identity] | None = None
    names: tuple[str, ...] = ()
    address: str = ""
    secret: bytes = b""
    sentinel: Sentinel | None = None


def met_in_run(rank: int, arena: Arena, hosts: Hosts, path: str, secret: bytes, pids: Sequence[int]) -> MeetingResult:
    """The result for a rank of a local world: its parent has told it all this, and hosts are parts of one machine.

    path: a file that becomes the store.
    pids: the pids of all ranks.
    """
    own = Identity.mine()
    identities = {peer: own.replace(pid=pids[peer], ticks=start_ticks(pids[peer])) for peer in hosts.beside(rank)}
    names = tuple(f"{own.host}/{number}" for number in range(len(hosts.members)))
    return MeetingResult(arena, hosts, FileStore(path), identities, names, _LOOPBACK, secret)


def meet(
    rank: int,
    size: int,
    store: Store,
    timeout_s: float,
    config: Config | None = None,
    why_absent: Callable[[int], str] = may_come,
) -> MeetingResult:
    """Meet the `size` ranks at this store. why_absent: see `meetings.may_come`.

    Raises WaitTimeout, which names the ranks that did not come, and PeerGone if a rank died meanwhile. Raises
    OutOfMemory on every rank. Raises ArgumentError on every rank that comes, if the ranks cannot form a group: threads
    of one process, a rank that will not come, hosts with different versions or settings, hosts that cannot reach each
    other. Raises ArgumentError for content of the store that no rank would have written.
    """
    if size > MAX_RANKS:
        raise ArgumentError(f"a group has 1 to {MAX_RANKS} ranks, not {size}")
    threading.Thread(target=_register_for_fences, name="unisono registers for fences", daemon=True).start()
    config = config or Config.from_env()
    with meeting_page(rank, size, timeout_s, config.stall_warning_s):
        meeting = _Meeting(rank, size, store, timeout_s, config, why_absent)
        try:
            return meeting.hold()
        finally:
            meeting.close()


def _register_for_fences() -> None:
    """Let the fences of sleeping ranks reach this process (`engine.kernels.waiting`), if the system knows such fences.

    The group registers, too. The first time, a process with several threads waits some 10 ms for the system: here the
    ranks meet meanwhile.
    """
    ctypes.CDLL(None).syscall(MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0)


class _Meeting(MeetingMember):
    """One rank's part."""

    def __init__(
        self, rank: int, size: int, store: Store, timeout_s: float, config: Config, why_absent: Callable[[int], str]
    ) -> None:
        super().__init__(rank, size, store, timeout_s, config, why_absent)
        self._config = config
        self._apart: set[int] = set()
        self._sentinel: Sentinel | None = None

    def hold(self) -> MeetingResult:
        """Take part until the meeting ends."""
        self._come()
        try:
            return self._take_part()
        except BaseException as error:
            self._give_up(error)
            raise

    def _take_part(self) -> MeetingResult:
        self._identities[0] = self._identity(0)
        hosts = self._place() if self._rank == 0 else Hosts(self._hear("hosts").hosts)
        first, *others = hosts.beside(self._rank)
        self._leads = self._rank == first
        arena, message = self._follow(first) if self._rank > first else self._lead(others, hosts)
        hosts = Hosts(message.hosts)
        if not hosts.spans or isinstance(self._met_at, SocketStore):
            return MeetingResult(arena, hosts)
        beside = {rank: one for rank, one in self._identities.items() if rank in hosts.beside(self._rank)}
        arena.neighbours = message.neighbours[hosts.host_of(self._rank)]
        address = beside[self._rank].address
        if message.toward and is_loopback(address):
            address = own_address(message.toward)
        secret = bytes.fromhex(message.secret)
        return MeetingResult(arena, hosts, self._met_at, beside, message.names, address, secret, self._sentinel)

    def _place(self) -> Hosts:
        """Rank 0's part: gather the identities, judge them, say which ranks may share a host."""
        for rank in range(1, self._size):
            self._identities[rank] = self._identity(rank)
            self._refuse(why_refused(self._identities))
        hosts = place(self._identities)
        self._way_between(hosts)
        self._tell("hosts", MeetingMessage(hosts=hosts.members))
        return hosts

    def _lead(self, others: Sequence[int], hosts: Hosts) -> tuple[Arena, MeetingMessage]:
        """The part of a host's first rank: hand out the memory, say which ranks have it, read other hosts' messages."""
        arena = Arena.create(self._size, self._config)
        with ExitStack() as until_told:
            try:
                if hosts.spans and not isinstance(self._met_at, SocketStore):
                    self._sentinel = Sentinel(arena)  # so it starts while the ranks meet
                handover = self._hand_out(arena, others, until_told)
                message = self._judge(hosts) if self._rank == 0 else self._report(others)
                handover.tell(message.text())
            except BaseException as error:
                if self._sentinel is not None:
                    self._sentinel.stop()
                arena.close()
                self._tell_why(error)  # before the others see their connections end
                raise
        return arena, message

    def _hand_out(self, arena: Arena, others: Sequence[int], until_told: ExitStack) -> Handover:
        name = f"unisono-{os.urandom(16).hex()}"
        for rank in others:
            self._identities[rank] = self._identity(rank)
        with listen(name) as listener:
            handover = Handover(arena.fd, listener, {rank: self._identities[rank] for rank in others})
            until_told.callback(handover.close)
            if others:
                self._tell(f"host {self._rank}", MeetingMessage(name=name))
                waits(others, "to take the memory of their host", self._where)
                if absent := handover.serve(self._deadline, self._look):
                    raise self._timeout(absent)
        for rank in {self._rank, *others} - self._apart:  # a rank may die before it can say so itself
            arena.board(rank).set_process(self._identities[rank].pid, self._identities[rank].ticks)
        return handover

    def _look(self, missing: Iterable[int]) -> list[int]:
        """The missing ranks of this host that do not get its memory. Raises if one has died, or the meeting is over."""
        self._check_peers(missing)
        if self._rank == 0:
            waits_still()
        with self._at_store():
            self._heed_the_end()
            refused = [rank for rank in missing if self._store.check([f"apart {rank}"])]
        self._apart.update(refused)
        return refused

    def _judge(self, hosts: Hosts) -> MeetingMessage:
        """Rank 0's part, when its host is complete: read the other hosts' messages, and tell all ranks."""
        for first, *others in hosts.members[1:]:
            self._apart.update({*others} - {*self._hear(f"proven {first}", first).proven})
        self._refuse(why_refused(self._identities, self._apart))
        hosts = place(self._identities, self._apart)
        toward = self._way_between(hosts)
        if not hosts.spans:
            return self._end(MeetingMessage(hosts=hosts.members))
        names = host_names(self._identities, hosts)
        on_machine = Counter(one.boot for one in self._identities.values())
        neighbours = tuple(on_machine[self._identities[host[0]].boot] for host in hosts.members)
        secret = os.urandom(32).hex()
        message = MeetingMessage(hosts.members, names=names, neighbours=neighbours, secret=secret, toward=toward)
        self._end(message)
        tell(remark(self._identities, hosts, self._apart))
        return message

    def _report(self, others: Iterable[int]) -> MeetingMessage:
        """Say which ranks have this host's memory; read which ranks are on which host."""
        proven = (self._rank, *(rank for rank in others if rank not in self._apart))
        self._tell(f"proven {self._rank}", MeetingMessage(proven=proven))
        return self._hear(END)

    def _follow(self, first: int) -> tuple[Arena, MeetingMessage]:
        """The part of all other ranks: fetch the memory from the host's first rank, or be a host of its own."""
        self._identities[first] = self._identity(first)
        name = self._hear(f"host {first}", first).name
        waits([first], "to hand out the memory of their host", self._where)
        try:
            home = self._identities[first]
            arena, told = fetch(name, first, home, self._rank, self._deadline, partial(self._last_message, first))
            return arena, MeetingMessage.read(told.encode(), self._size, first)
        except UnisonoError:
            raise
        except (ConnectionRefusedError, PermissionError):
            self._check_peers([first])
        except (EOFError, OSError) as error:
            self._await_reason()
            self._check_peers([first])
            raise self._timeout([first]) from error
        arena = Arena.create(self._size, self._config)
        self._tell(f"apart {self._rank}", MeetingMessage(proven=(self._rank,)))
        message = self._hear(END)
        if Hosts(message.hosts).beside(self._rank)[0] != self._rank:
            raise self._timeout([self._rank])  # this rank has come a second time: its first coming counts
        return arena, message

    def _last_message(self, first: int, _error: Exception) -> str:
        """How the meeting has ended, if this host's first rank does not say so. The first rank counts on this one."""
        self._await_reason()
        self._check_peers([first])
        return self._leave(self._timeout([first])).decode()

    def _refuse(self, reason: str) -> None:
        if reason:
            raise ArgumentError(reason)

    def _way_between(self, hosts: Hosts) -> str:
        """An address on the way between hosts. Raises ArgumentError if there are several hosts, and no address."""
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


def meet_in_rounds(place: MeetingPlace, config: Config | None = None) -> MeetingResult:
    """Meet the ranks of a launch at this place. Raises as `MeetingPlace.enter` and `meet` do.

    A meeting ends for all ranks when the time of a rank that others count on is up. A rank in its first call of
    `init()` then hears at once which ranks are missing. A rank that calls `init()` again may do so while others are in
    their first call: their time-out says nothing about its own call. So it waits for the next meeting, until its own
    time is up.
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
            if not entered and missing:  # rank 0 may have given up because of these ranks
                raise WaitTimeout(error.call, now - began, missing, launch.rank, error.details) from error
            raise WaitTimeout(error.call, now - began, error.missing, launch.rank, error.details) from error
