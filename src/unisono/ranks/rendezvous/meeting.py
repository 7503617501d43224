"""One rank in a meeting: a star whose middle is the store, and whose judge is rank 0.

A store may see several meetings: rank 0 begins each of them, and the others come to the one that it holds now. So a
rank that comes late, or comes again after a time-out, meets the others in the next meeting.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import takewhile
from socket import socket

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's __all__

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError, WaitTimeout
from ...base.fd_channel import listen
from ...base.python import tell
from ...base.records import DepartureKind
from ...engine.memory.arena import Arena
from ...engine.process.alive import start_ticks
from ...hosts.addresses import own_address, store_host, store_place
from ...observe.live.meeting_page import waits, waits_still
from ...schedule import Hosts
from .asked_store import AskedStore
from .entries import MOST_TEXT, HostMap, MeetingEnd, read, write
from .handover import fetch, hand_out
from .identity import HOST_ID, Identity, check, host_names, place, remark, way_between
from .rendezvous_messages import died, end_of, gave_up, missing, other_job, sizes_differ, twice, why_ended

NOTICE, BEAT, END, TOLD = "meeting", "beat", "end", "told"  # keys of the store, see `Meeting`
_ASK_S = 0.005
_CHECK_S = 0.1  # how often a rank that waits looks for the end of the meeting, and for deaths
_SAY_S = 1.0  # how often rank 0 looks which ranks have not come, to say so on its page
_TO_DO = {
    "rank": "to come",
    "hosts": "to say which ranks share a host",
    "ready": "to hand out the memory of their host",
    END: "to say how the meeting has ended",
}
"""First word of a key -> what the missing rank has to do."""
_REASON_S = 1.0  # how much longer to wait for a reason: rank 0's time may be up a little later than this rank's
_LOOK_S, _NEXT_S = 0.05, 0.02
"""How often a rank looks whether rank 0 may still come, and whether it has begun the next meeting."""
_LATE_S = 3.0  # how long the process that may run the store stays after a meeting without a group

_known: set[tuple[int, str]] = set()  # (rank, meeting): the meetings that this process has seen as this rank


def may_come(_rank: int) -> str:
    """Why a rank that has not come will not come; "": it may come, as far as is known."""
    return ""


def leave_store(store: Store, rank: int, others: int) -> None:
    """This rank needs the store no more, and has no group. Rank 0's process, which may run the store, stays until that
    is so of this many other ranks: without the store they would name rank 0, or wait until their time is up.
    """
    if rank:
        with suppress(UnisonoError), closing(AskedStore(store, rank, time.monotonic())) as asked:
            asked.add(TOLD, 1)
    elif others > 0 and store_place(store):
        # No daemon: a process ends after its threads.
        threading.Thread(target=_stay, args=(store, others), name="unisono stays for late ranks", daemon=False).start()


def _stay(store: Store, ranks: int) -> None:
    until = time.monotonic() + _LATE_S
    with suppress(UnisonoError), closing(AskedStore(store, 0, until)) as asked:
        while asked.add(TOLD, 0) < ranks and time.monotonic() < until:
            time.sleep(_ASK_S)


def tell_gave_up(arena: Arena, rank: int, error: BaseException) -> None:
    """This rank has met the others, and will not be in their group: their calls need not wait for it."""
    arena.board(rank).set_gone(DepartureKind.RAISED, gave_up(error, rank).words)


def _leave(arena: Arena, rank: int, _kind: object, error: BaseException | None, _trace: object) -> None:
    if error is not None:
        tell_gave_up(arena, rank, error)
    arena.close()


class Meeting:
    """One rank's part in a meeting. At the store, there is for all meetings:

        meeting     rank 0: its identity in the meeting that it has begun last

    and in the part of the store that has the name of a meeting:

        rank 3      each other rank: its identity, with the socket where it listens
        hosts       rank 0, after the identities: which ranks share a host
        ready 4     the first rank of a host: all its ranks have the memory
        end         how the meeting has ended; the first value counts. Rank 0: a group. Any rank: why there is none
        beat        rank 0: a number that grows while rank 0 waits
        told        how many ranks know why there is no group, and need the store no more

    A rank that waits for a key looks at `end` as well. It writes there why it gives up before its process ends, and a
    rank that sees the end of another process looks there first. So all ranks name the rank that has failed first.

    job: its name, or "".
    stale: a rank 0 that has ended may have begun the last meeting: so a meeting counts once its rank 0 is seen to wait.
    why_absent: see `may_come`.
    name: of the meeting, once this rank has come.
    identities: of the ranks that this rank has met.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        timeout_s: float,
        config: Config,
        why_absent: Callable[[int], str] = may_come,
        *,
        job: str = "",
        stale: bool = False,
    ) -> None:
        self._rank, self._size, self._config, self._why_absent = rank, size, config, why_absent
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._looks, self._stale, self.name = 0, stale, ""
        own = Identity.mine(config, own_address(store_host(store)))
        self._home = own._replace(size=size, job=job[:MOST_TEXT])
        self.identities = {rank: self._home}
        self._met_at, self._store = store, AskedStore(store, rank, self._deadline, self._look_at_peers)
        self._where = self._store.where

    def hold(self) -> tuple[Arena, HostMap]:
        """Take part until the meeting ends: the memory of this host, and the hosts of all ranks."""
        with closing(self._store), listen(self._home.listens_at) as listener, ExitStack() as undo:
            self._come()
            try:
                return self._take_part(listener, undo)
            except BaseException as error:
                self._give_up(error)  # before the others see their connections end
                raise

    def _take_part(self, listener: socket, undo: ExitStack) -> tuple[Arena, HostMap]:
        told = self._place() if self._rank == 0 else read(HostMap, self._await("hosts", 0), 0, self._size)
        hosts = Hosts(tuple(ranks for ranks, _, _ in told.hosts))
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
        return arena, told

    def _come(self) -> None:
        """Begin a meeting as rank 0; as another rank, come to the one that rank 0 holds now, or to the next one.

        Raises WaitTimeout if rank 0 begins none in time. Raises ArgumentError if rank 0 will not come, if another job
        meets here, if the ranks were given different sizes, or if another process has come as this rank.
        """
        if self._rank == 0:
            self._begin()
        else:
            self.identities[0] = self._find()
        self.name = self.identities[0].listens_at
        _known.add((self._rank, self.name))
        self._store.enter(self.name)
        if self._rank:
            said = self._store.set_first(f"rank {self._rank}", write(self._home))
            there = read(Identity, said, self._rank)
            if (there.place, there.pid, there.ticks) != (self._home.place, self._home.pid, self._home.ticks):
                raise twice(self._where, self._rank, there.who)

    def _begin(self) -> None:
        """Begin a meeting. If the store did not answer in time, it may not know that rank 0's last one has ended: so
        rank 0 writes it now. The notice of that meeting may also reach the store only now: so the new notice replaces
        only the notice that this rank has read.
        """
        before, mine, there = _known.copy(), write(self._home).encode(), b""
        _known.add((0, self._home.listens_at))
        while (said := self._store.replace(NOTICE, there.decode(), mine.decode())) != mine:
            there = said
            if (0, last := read(Identity, there, 0).listens_at) in before:
                self._store.set_first(f"{last}/{END}", write(MeetingEnd(missing=(0,))))

    def _find(self) -> Identity:
        """Rank 0, in the meeting that it holds now, or in the next one."""
        beats: dict[str, bytes] = {}  # meeting -> its first beat that was seen
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
                elif first.job != self._home.job:
                    raise other_job(self._where, self._rank, self._home.job, first)
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
            wrong = sizes_differ(rank, self._size, first)
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
            self._await_reason()
            if isinstance(error, ConnectionRefusedError | PermissionError):
                raise ArgumentError(
                    f"rank {self._rank} runs on the machine of rank {first}, but the system denied access to its "
                    f"memory ({error}). If they run in containers without shared memory, set {HOST_ID} to a different "
                    "value for each."
                ) from error
            raise self._timeout([first]) from error

    def _give_up(self, error: BaseException) -> None:
        """Publish why there is no group. Rank 0's process, which may run the store, stays until the others know."""
        with suppress(UnisonoError):  # the store has gone; this rank says so itself
            self._store.set_first(END, write(end_of(error, self._rank)))
            others = 0
            if self._rank == 0:
                # After a time-out, a rank that comes late waits for the next meeting.
                late = self._absent() if isinstance(error, WaitTimeout) else []
                come = (rank for rank in range(1, self._size) if rank not in late and not self._has_died(rank))
                others = sum(not self._why_absent(rank) for rank in come)
            leave_store(PrefixStore(self.name, self._met_at), self._rank, others)

    def _heed(self, said: bytes) -> None:
        """Raise why the meeting has ended, if it has ended without a group."""
        end = read(MeetingEnd, said, 0, self._size)
        if error := why_ended(end, self._rank, time.monotonic() - self._start):
            raise error

    def _identity(self, rank: int) -> Identity:
        if rank not in self.identities:
            self.identities[rank] = read(Identity, self._await(f"rank {rank}", rank), rank)
        return self.identities[rank]

    def _await(self, key: str, teller: int) -> bytes:
        """The value of a key, once the store has it."""
        say_at = 0.0
        waits([teller], _TO_DO[key.partition(" ")[0]], self._where)
        while (said := self._store.value(key, min(_CHECK_S, self._deadline - time.monotonic()))) is None:
            if time.monotonic() >= self._deadline:
                return self._stop_waiting(key, teller)
            self._find_one()
            reason = self._why_absent(teller)
            self._look()
            if reason:
                raise ArgumentError(reason)
            if self._rank == 0:  # the others wait for it
                self._store.set(BEAT, f"{time.monotonic_ns()}")
                if key == f"rank {teller}" and time.monotonic() >= say_at:
                    say_at = time.monotonic() + _SAY_S
                    waits(self._absent() or [teller], _TO_DO["rank"], self._where)
        return said

    def _stop_waiting(self, key: str, teller: int) -> bytes:
        """This rank's time is up: raise the error, or return how the meeting has ended."""
        absent = self._absent()
        if not absent and self._rank:
            self._await_reason()
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
        """Raise why the meeting has ended, or PeerGone for a process that has ended before it could say why, or do its
        part.
        """
        if self._rank == 0:
            waits_still()  # no other rank says so
        dead = self._dead()  # before the look at the store: a process that ends has written there first
        if (said := self._store.now(END)) is not None:
            self._heed(said)
        elif dead:
            raise dead

    def _look_at_peers(self) -> None:
        """Raise PeerGone for a rank that has died, without a question to the store."""
        if dead := self._dead():
            raise dead

    def _dead(self) -> Exception | None:
        """The error for a rank whose process has ended."""
        dead = next(filter(self._has_died, self.identities), None)
        return None if dead is None else died(dead, self.identities[dead].pid, self._rank)

    def _has_died(self, rank: int) -> bool:
        """Has the process of another rank ended? Only if it has come, and can be seen from here."""
        there = self.identities.get(rank)
        if rank == self._rank or there is None or there.place != self._home.place:
            return False
        return start_ticks(there.pid) != there.ticks

    def _await_reason(self) -> None:
        """Raise why there is no group, if that is known soon."""
        until = time.monotonic() + _REASON_S
        while time.monotonic() < until:
            self._look()
            time.sleep(_ASK_S)

    def _absent(self, ranks: Sequence[int] = ()) -> list[int]:
        """Which of these ranks, or of all, have not come. A question is about many ranks: most of them have come."""
        ranks = ranks or range(1, self._size)  # rank 0 has begun the meeting
        if self._store.check([f"rank {rank}" for rank in ranks]):
            return []
        if len(ranks) == 1:
            return list(ranks)
        middle = len(ranks) // 2
        return self._absent(ranks[:middle]) + self._absent(ranks[middle:])

    def _timeout(self, ranks: Sequence[int]) -> WaitTimeout:
        return missing(tuple(ranks), self._rank, time.monotonic() - self._start)
