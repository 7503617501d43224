"""One rank in a meeting: a star whose middle is the store, and whose judge is rank 0.

A store may see several meetings: rank 0 begins each of them, and the others come to the one that it holds now. So a
rank that comes late, or comes again after a time-out, meets the others in the next meeting.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import takewhile
from socket import socket
from typing import NamedTuple

from torch.distributed import Store

from ...base.config import Config
from ...base.errors import ArgumentError, PeerGone, UnisonoError, WaitTimeout
from ...base.fd_channel import listen
from ...base.python import tell
from ...base.records import DepartureKind
from ...engine.memory.arena import Arena
from ...engine.memory.board import MAX_RANKS
from ...engine.process.alive import start_ticks
from ...hosts.addresses import is_loopback, own_address, store_host
from ...observe.live.meeting_page import waits, waits_still
from ...schedule import Hosts
from .entries import MOST_TEXT, HostMap, MeetingEnd, read, write
from .handover import fetch, hand_out
from .identity import HOST_ID, Identity, check, host_names, place, remark, way_between
from .participant import TO_COME, TOLD, Participant, may_come
from .rendezvous_messages import died, end_of, gave_up, missing, why_ended

LOOPBACK = "127.0.0.1"
NOTICE, BEAT, END = "meeting", "beat", "end"  # keys of the store, see `Meeting`
_SAY_S = 1.0  # how often rank 0 looks which ranks have not come, to say so on its page
_REASON_S = 1.0  # how much longer to wait for a reason: rank 0's time may be up a little later than this rank's
_OWN_PORT = "Give each job its own port: set MASTER_PORT"
_LOOK_S, _NEXT_S = 0.05, 0.02
"""How often a rank looks whether rank 0 may still come, and whether it has begun the next meeting."""

_known: set[tuple[int, str]] = set()  # (rank, meeting): the meetings that this process has seen as this rank


def tell_gave_up(arena: Arena, rank: int, error: BaseException) -> None:
    """This rank has met the others, and will not be in their group: their calls need not wait for it."""
    arena.board(rank).set_gone(DepartureKind.RAISED, gave_up(error, rank).words)


def _leave(arena: Arena, rank: int, _kind: object, error: BaseException | None, _trace: object) -> None:
    if error is not None:
        tell_gave_up(arena, rank, error)
    arena.close()


class MeetingResult(NamedTuple):
    """The memory of a rank's host, and on several hosts what it takes to speak to the others.

    On one host, only arena, hosts and the meeting's name are set.

    hosts: which ranks share memory.
    store: where all ranks can leave messages for each other.
    names: the names of the hosts.
    address: where other hosts reach this process.
    secret: only the ranks know it.
    name: of the meeting; "": the ranks have not met at a store.
    """

    arena: Arena
    hosts: Hosts
    store: Store | None = None
    names: tuple[str, ...] = ()
    address: str = ""
    secret: bytes = b""
    name: str = ""


class Meeting(Participant):
    """One rank's part in a meeting. At the store, there is for all meetings:

        meeting     rank 0: its identity in the meeting that it has begun last

    and in the part of the store that has the name of a meeting:

        rank 3      each other rank: its identity, with the socket where it listens
        hosts       rank 0, after the identities: which ranks share a host
        ready 4     the first rank of a host: all its ranks have the memory
        end         how the meeting has ended; the first value counts. Rank 0: a group. Any rank: why there is none
        beat        rank 0, if meetings may be stale: a number that grows while it waits
        told        how many ranks know why there is no group, and need the store no more

    job: its name, or "".
    stale: a rank 0 that has ended may have begun the last meeting: so a meeting counts once its rank 0 is seen to wait.
    name: of the meeting, once this rank has come.
    identities: of the ranks that this rank has met.
    """

    end = END

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        timeout_s: float,
        config: Config | None = None,
        why_absent: Callable[[int], str] = may_come,
        *,
        job: str = "",
        stale: bool = False,
    ) -> None:
        if size > MAX_RANKS:
            raise ArgumentError(f"size: got {size}, expected 1 to {MAX_RANKS} ranks")
        super().__init__(rank, size, store, timeout_s, why_absent)
        self._config, self._stale, self.name = config or Config.from_env(), stale, ""
        self._looks, self._say_at = 0, 0.0
        own = Identity.mine(self._config, own_address(store_host(store)))
        self._home = own._replace(size=size, job=job[:MOST_TEXT])
        self.identities = self._watched = {rank: self._home}

    def hold(self) -> MeetingResult:
        """Take part until the meeting ends.

        Raises WaitTimeout, which names the ranks that did not come, and PeerGone if a rank died meanwhile, or the
        store. Raises OutOfMemory on every rank. Raises ArgumentError on every rank that comes, if the ranks cannot form
        a group: threads of one process, a rank that will not come, different sizes, hosts with different versions or
        settings, hosts that cannot reach each other. Raises ArgumentError if another job meets here, and for content of
        the store that no rank would have written.
        """
        with closing(self), listen(self._home.listens_at) as listener, ExitStack() as undo:
            self._come()
            try:
                return self._take_part(listener, undo)
            except BaseException as error:
                self._give_up(end_of(error, self._rank))  # before the others see their connections end
                raise

    def _take_part(self, listener: socket, undo: ExitStack) -> MeetingResult:
        told = self._place() if self._rank == 0 else read(HostMap, self._await("hosts", 0), 0, self._size)
        members, names, neighbours = zip(*told.hosts, strict=True)
        hosts = Hosts(members)
        first, *others = hosts.beside(self._rank)
        if self._rank == first:
            pids = [self._identity(rank).pid for rank in others]
            arena = Arena.create(self._size, self._config, pids, spans=hosts.spans)
            undo.push(partial(_leave, arena, self._rank))
            self._hand_out(arena, listener, others)
        else:
            arena = self._follow(first)
            undo.push(partial(_leave, arena, self._rank))
        if self._rank == 0:
            for first, *_ in hosts.members[1:]:
                self._await(f"ready {first}", first)
            self._heed(self._store.set_first(END, write(MeetingEnd())))
            tell(remark(self.identities, hosts))
        else:
            if self._rank == first:
                self._store.set(f"ready {first}", "")
            self._heed(self._await(END, 0))
        undo.pop_all()
        if not hosts.spans:
            return MeetingResult(arena, hosts, name=self.name)
        arena.neighbours = neighbours[hosts.host_of(self._rank)]
        address = self._home.address or LOOPBACK
        if told.toward and is_loopback(address):
            address = own_address(told.toward)
        return MeetingResult(arena, hosts, self._part, names, address, bytes.fromhex(told.secret), self.name)

    def _come(self) -> None:
        """Begin a meeting as rank 0; as another rank, come to the one that rank 0 holds now, or to the next one."""
        if self._rank == 0:
            self._begin()
        else:
            self.identities[0] = self._find()
        self.name = self.identities[0].listens_at
        _known.add((self._rank, self.name))
        self._enter(self.name)
        if self._rank:
            said = self._store.set_first(f"rank {self._rank}", write(self._home))
            there = read(Identity, said, self._rank)
            if (there.place, there.pid, there.ticks) != (self._home.place, self._home.pid, self._home.ticks):
                at = self._where and f" at {self._where}"
                raise ArgumentError(
                    f"another process is rank {self._rank} already{at}: {there.who}. Give each process of a job its "
                    f"own RANK. {_OWN_PORT}."
                )

    def _begin(self) -> None:
        """Begin a meeting, and end the last one: if the store did not answer in time, it may not know that. The notice
        of that meeting may also reach the store only now: so the new notice replaces only what this rank has read.
        """
        mine, there = write(self._home).encode(), b""
        while (said := self._store.replace(NOTICE, there.decode(), mine.decode())) != mine:
            there = said
            self._store.set_first(f"{read(Identity, there, 0).listens_at}/{END}", write(MeetingEnd(missing=(0,))))

    def _find(self) -> Identity:
        """Rank 0, in the meeting that it holds now, or in the next one."""
        job, beats = self._home.job, dict[str, bytes]()  # meeting -> its first beat that was seen
        at = self._where and f" at {self._where}"
        details = f" The store{at} responds, but rank 0 has not called init(), or waits in torch's store for a missing "
        details += "rank, or another program uses this port."
        waits((0,), "to begin the meeting", self._where)
        while True:
            if (said := self._store.value(NOTICE, min(_LOOK_S, self._deadline - time.monotonic()))) is not None:
                first = read(Identity, said, 0)
                beat = self._store.now(f"{first.listens_at}/{BEAT}") or b"" if self._stale else b""
                if self._stale and beats.setdefault(first.listens_at, beat) == beat:
                    details = f" The last rank 0 there was {first.who}, of an earlier start of the job."
                elif first.job != job:
                    own, other = (f"job {name!r}" if name else "a job without a name" for name in (job, first.job))
                    raise ArgumentError(
                        f"rank {self._rank} of {own} found another job at {self._where or 'the store'}: {other}, whose "
                        f"rank 0 is {first.who}. {_OWN_PORT}."
                    )
                elif not self._is_over(first):
                    return first
                else:
                    details = f" Rank 0, {first.who}, has not called init() again after the last attempt."
                time.sleep(_NEXT_S)
            waits_still()
            if reason := self._why_absent(0):
                raise ArgumentError(reason)
            if time.monotonic() >= self._deadline:
                raise missing((0,), self._rank, time.monotonic() - self._start, details)

    def _is_over(self, first: Identity) -> bool:
        """Has rank 0's meeting ended? Raises its error if it is new to this rank, and would recur in the next one."""
        rank, name, wrong = self._rank, first.listens_at, None
        if first.size != self._size:
            wrong = ArgumentError(
                f"the ranks were given different sizes: rank 0 {first.size}, rank {rank} {self._size}. Give all ranks "
                "the same WORLD_SIZE, or the same size in init()."
            )
            self._store.set_first(f"{name}/{END}", write(end_of(wrong, rank)))
        if (said := self._store.now(f"{name}/{END}")) is None:
            return False
        if (rank, name) not in _known:
            _known.add((rank, name))
            ended = read(MeetingEnd, said, rank, first.size)
            error = why_ended(ended, rank, time.monotonic() - self._start)
            if error and not ended.missing:
                self._store.add(f"{name}/{TOLD}", 1)
                raise error
        if wrong:
            raise wrong
        return True

    def _place(self) -> HostMap:
        """Rank 0's part: gather the identities, check them, publish which ranks share a host."""
        for rank in range(1, self._size):
            check({0: self._home, rank: self._identity(rank)})
        check(self.identities)
        hosts = place(self.identities)
        on_machine = Counter(one.boot for one in self.identities.values())
        neighbours = (on_machine[self.identities[host[0]].boot] for host in hosts.members)
        of_hosts = tuple(zip(hosts.members, host_names(self.identities, hosts), neighbours, strict=True))
        told = HostMap(of_hosts, os.urandom(32).hex() if hosts.spans else "", way_between(self.identities))
        self._store.set("hosts", write(told))
        return told

    def _hand_out(self, arena: Arena, listener: socket, others: Sequence[int]) -> None:
        """The part of a host's first rank: hand out the memory to the others."""
        waits(others, "to take the memory of their host", self._where)
        ranks = {rank: self._identity(rank) for rank in others}
        if absent := hand_out(arena.fd, listener, ranks, self._deadline, self._look):
            raise self._timeout(absent)
        for rank in (self._rank, *others):  # a rank may die before it can say so itself
            arena.board(rank).set_process(self.identities[rank].pid, self.identities[rank].ticks)

    def _follow(self, first: int) -> Arena:
        """The part of all other ranks: fetch the memory from the host's first rank."""
        home = self._identity(first)
        waits([first], "to hand out the memory of their host", self._where)
        try:
            return fetch(home, first, self._rank, self._deadline)
        except UnisonoError:
            raise
        except (EOFError, OSError) as error:
            self._await_reason(time.monotonic() + _REASON_S)
            if isinstance(error, ConnectionRefusedError | PermissionError):
                raise ArgumentError(
                    f"rank {self._rank} runs on the machine of rank {first}, but the system denied access to its "
                    f"memory ({error}). If they run in containers without shared memory, set {HOST_ID} to a different "
                    "value for each."
                ) from error
            raise self._timeout([first]) from error

    def _identity(self, rank: int) -> Identity:
        if rank not in self.identities:
            self.identities[rank] = read(Identity, self._await(f"rank {rank}", rank), rank)
        return self.identities[rank]

    def _stop_waiting(self, key: str, teller: int) -> bytes:
        absent = self._absent()
        if not absent and self._rank:
            self._await_reason(time.monotonic() + _REASON_S)
        error = self._timeout(absent or [teller])
        if key == END:  # the others may have a group by now, of which this rank is a member
            return self._store.set_first(END, write(end_of(error, self._rank)))
        raise error

    def _find_one(self) -> None:
        """Look for one more rank between this one and the next that is known on this host. So each rank soon watches
        the next one that has come, whatever it waits for, and a look is one question.
        """
        beside = {rank for rank, one in self.identities.items() if one.place == self._home.place}
        after = ((self._rank + step) % self._size for step in range(1, self._size))
        unknown = [rank for rank in takewhile(lambda rank: rank not in beside, after) if rank not in self.identities]
        if unknown:
            self._looks += 1
            rank = unknown[self._looks % len(unknown)]
            if (said := self._store.now(f"rank {rank}")) is not None:
                self.identities[rank] = read(Identity, said, rank)

    def _look(self) -> None:
        self._find_one()
        if self._rank == 0:  # the others wait for it, and none of them says who is late
            if self._stale:
                self._store.set(BEAT, f"{time.monotonic_ns()}")
            if time.monotonic() >= self._say_at:
                self._say_at = time.monotonic() + _SAY_S
                if absent := self._absent():
                    waits(absent, TO_COME, self._where)
            waits_still()
        super()._look()

    def _death(self, rank: int) -> PeerGone | None:
        there = self.identities.get(rank)
        if rank == self._rank or there is None or there.place != self._home.place:
            return None
        return died(rank, there.pid, self._rank) if start_ticks(there.pid) != there.ticks else None

    def _absent(self, ranks: Sequence[int] = ()) -> list[int]:
        """Those of these ranks, or of all. A question is about many ranks: most of them have come."""
        ranks = ranks or range(1, self._size)  # rank 0 has begun the meeting
        if self._store.check([f"rank {rank}" for rank in ranks]):
            return []
        if len(ranks) == 1:
            return list(ranks)
        middle = len(ranks) // 2
        return self._absent(ranks[:middle]) + self._absent(ranks[middle:])

    def _timeout(self, ranks: Sequence[int]) -> WaitTimeout:
        return missing(tuple(ranks), self._rank, time.monotonic() - self._start)
