"""One rank in a meeting: a star whose middle is the store, and whose judge is rank 0."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress

from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError, WaitTimeout
from ...base.fd_channel import listen
from ...base.python import tell
from ...engine.memory.arena import Arena
from ...engine.memory.meeting_page import waits, waits_still
from ...engine.process.alive import start_ticks
from ...hosts.addresses import own_address, store_host, store_place
from ...hosts.sentinel.start import Sentinel
from ...schedule import Hosts
from .asked_store import AskedStore, at_store
from .handover import Handover, fetch
from .identity import Identity, common_settings, host_names, place, remark, way_between, why_refused
from .meetings import BEAT, END, TOLD
from .rendezvous_messages import (
    MeetingMessage,
    died,
    message_of,
    missing,
    read_identity,
    twice,
    why_ended,
    write_identity,
)

_ASK_S = 0.005
_CHECK_S = 0.1  # how often a rank that waits looks for the end of the meeting, and for deaths
_SAY_S = 1.0  # how often rank 0 looks which ranks have not come, to say so on its page
_TO_DO = {
    "rank": "to come",
    "hosts": "to say which ranks share a host",
    "host": "to hand out the memory of their host",
    "proven": "to say which ranks have the memory of their host",
    END: "to say how the meeting has ended",
}
"""First word of a key -> what the missing rank has to do."""
_REASON_S = 1.0  # how much longer to wait for a reason: rank 0's time may be up a little later than this rank's
_LATE_S = 3.0  # how long the process that may run the store stays after a meeting without a group


def stay_for(store: Store, ranks: int) -> None:
    """Keep this process, which may run the store, until so many other ranks know why there is no group.

    Without the store they would name this rank, or look for the store until their time is up.
    """
    if ranks > 0 and store_place(store):
        # No daemon: a process ends after its threads.
        threading.Thread(target=_stay, args=(store, ranks), name="unisono stays for late ranks", daemon=False).start()


def _stay(store: Store, ranks: int) -> None:
    until = time.monotonic() + _LATE_S
    with suppress(RuntimeError, TimeoutError), closing(AskedStore(store, until)) as asked:
        while asked.add(TOLD, 0) < ranks and time.monotonic() < until:
            time.sleep(_ASK_S)


class Meeting:
    """One rank's part in a meeting. The keys at the store:

        rank 3      each rank: its identity
        hosts       rank 0, after the identities: which ranks may share a host
        host 4      the first rank of a host: where it hands out its memory
        apart 5     a rank that did not get the memory of its host
        proven 4    the first rank of a host: which ranks have the memory
        end         how the meeting has ended; the first value counts. Rank 0: the group. Any rank: why there is none
        beat        rank 0: a number that grows while rank 0 waits
        told        how many ranks know why there is no group, and need the store no more

    A rank that waits for a key looks at `end` as well. It writes there why it gives up before its process ends, and a
    rank that sees the end of another process looks there first. So all ranks name the rank that has failed first.

    identities: of the ranks that this rank has met.
    sentinel: on the first rank of one of several hosts, its sentinel, which starts.
    """

    def __init__(
        self, rank: int, size: int, store: Store, timeout_s: float, config: Config, why_absent: Callable[[int], str]
    ) -> None:
        self._rank, self._size, self._config, self._why_absent = rank, size, config, why_absent
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._leads = rank == 0
        self._apart: set[int] = set()
        self._looks = 0
        self._home = Identity.mine().replace(common=common_settings(config), address=own_address(store_host(store)))
        self.identities = {rank: self._home}
        self.sentinel: Sentinel | None = None
        self._met_at, self._store = store, AskedStore(store, self._deadline, self._look_at_peers)
        self._where = self._store.where

    def hold(self) -> tuple[Arena, MeetingMessage]:
        """Take part until the meeting ends: the memory of this host, and the end of the meeting."""
        with closing(self._store):
            self._come()
            try:
                self._identity(0)
                hosts = self._place() if self._rank == 0 else Hosts(self._read("hosts").hosts)
                first, *others = hosts.beside(self._rank)
                self._leads = self._rank == first
                return self._lead(others, hosts) if self._leads else self._follow(first)
            except BaseException as error:
                self._give_up(error)
                raise

    def _come(self) -> None:
        """Write this rank's identity. Raises ArgumentError if another process has come as this rank."""
        with self._at_store():
            said = self._store.set_first(f"rank {self._rank}", write_identity(self._home))
        there = read_identity(self._rank, said)
        if (there.place, there.pid, there.ticks) != (self._home.place, self._home.pid, self._home.ticks):
            raise twice(self._where, self._rank, f"process {there.pid} on {there.where}")

    def _place(self) -> Hosts:
        """Rank 0's part: gather the identities, judge them, say which ranks may share a host."""
        for rank in range(1, self._size):
            self._identity(rank)
            self._refuse(why_refused(self.identities))
        hosts = place(self.identities)
        self._way_between(hosts)
        self._publish("hosts", MeetingMessage(hosts=hosts.members))
        return hosts

    def _lead(self, others: Sequence[int], hosts: Hosts) -> tuple[Arena, MeetingMessage]:
        """The part of a host's first rank: hand out the memory, and say which ranks have it."""
        arena = Arena.create(self._size, self._config, [self._identity(rank).pid for rank in others])
        with ExitStack() as until_told:
            try:
                if hosts.spans:
                    self.sentinel = Sentinel(arena)  # so it starts while the ranks meet
                handover = self._hand_out(arena, others, until_told)
                if self._rank == 0:
                    message = self._judge(hosts)
                else:
                    proven = (self._rank, *(rank for rank in others if rank not in self._apart))
                    self._publish(f"proven {self._rank}", MeetingMessage(proven=proven))
                    message = self._read(END)
                handover.tell(message.text())
            except BaseException as error:
                if self.sentinel is not None:
                    self.sentinel.stop()
                arena.close()
                self._publish_failure(error)  # before the others see their connections end
                raise
        return arena, message

    def _hand_out(self, arena: Arena, others: Sequence[int], until_told: ExitStack) -> Handover:
        name = f"unisono-{os.urandom(16).hex()}"
        with listen(name) as listener:
            handover = Handover(arena.fd, listener, {rank: self._identity(rank) for rank in others})
            until_told.callback(handover.close)
            if others:
                self._publish(f"host {self._rank}", MeetingMessage(name=name))
                waits(others, "to take the memory of their host", self._where)
                if absent := handover.serve(self._deadline, self._refused):
                    raise self._timeout(absent)
        for rank in {self._rank, *others} - self._apart:  # a rank may die before it can say so itself
            arena.board(rank).set_process(self.identities[rank].pid, self.identities[rank].ticks)
        return handover

    def _refused(self, absent: Iterable[int]) -> list[int]:
        """The next of these ranks, if it did not get the memory. Raises if one has died, or the meeting has ended."""
        if self._rank == 0:
            waits_still()
        with self._at_store():
            self._look()
            refused = [rank for rank in [min(absent)] if self._store.check([f"apart {rank}"])]
        self._apart.update(refused)
        return refused

    def _judge(self, hosts: Hosts) -> MeetingMessage:
        """Rank 0's part, when its host is complete: read who has the memory of other hosts, and end the meeting."""
        for first, *others in hosts.members[1:]:
            self._apart.update({*others} - {*self._read(f"proven {first}", first).proven})
        self._refuse(why_refused(self.identities, self._apart))
        hosts = place(self.identities, self._apart)
        toward = self._way_between(hosts)
        message = MeetingMessage(hosts=hosts.members)
        if hosts.spans:
            names = host_names(self.identities, hosts)
            on_machine = Counter(one.boot for one in self.identities.values())
            neighbours = tuple(on_machine[self.identities[host[0]].boot] for host in hosts.members)
            secret = os.urandom(32).hex()
            message = MeetingMessage(hosts.members, names=names, neighbours=neighbours, secret=secret, toward=toward)
        with self._at_store():
            said = self._store.set_first(END, message.text())
        message = self._heed(said)
        tell(remark(self.identities, hosts, self._apart))
        return message

    def _follow(self, first: int) -> tuple[Arena, MeetingMessage]:
        """The part of all other ranks: fetch the memory from the host's first rank, or be a host of its own."""
        home, name = self._identity(first), self._read(f"host {first}", first).name
        waits([first], "to hand out the memory of their host", self._where)

        def instead(_error: Exception) -> str:
            """How the meeting has ended, if the first rank does not say so. The first rank counts on this one."""
            self._await_end()
            return self._leave(self._timeout([first])).decode()

        try:
            arena, told = fetch(name, first, home, self._rank, self._deadline, instead)
            return arena, MeetingMessage.read(told.encode(), self._size, first)
        except UnisonoError:
            raise
        except (ConnectionRefusedError, PermissionError):
            with self._at_store():
                self._look()
        except (EOFError, OSError) as error:
            self._await_end()
            raise self._timeout([first]) from error
        arena = Arena.create(self._size, self._config)
        self._publish(f"apart {self._rank}", MeetingMessage(proven=(self._rank,)))
        message = self._read(END)
        if Hosts(message.hosts).beside(self._rank)[0] != self._rank:
            raise self._timeout([self._rank])  # this rank has come a second time: its first coming counts
        return arena, message

    def _refuse(self, reason: str) -> None:
        if reason:
            raise ArgumentError(reason)

    def _way_between(self, hosts: Hosts) -> str:
        """An address on the way between hosts. Raises ArgumentError if there are several hosts, and no address."""
        toward, reason = way_between(self.identities) if hosts.spans else ("", "")
        self._refuse(reason)
        return toward

    def _publish(self, key: str, message: MeetingMessage) -> None:
        with self._at_store():
            self._store.set(key, message.text())

    def _publish_failure(self, error: BaseException) -> None:
        """End the meeting, unless it has ended. A rank that no longer waits for its first rank just leaves: it may come
        again, until the meeting has ended. A rank that others count on calls `_leave`.
        """
        if not isinstance(error, WaitTimeout) or self._leads:
            with suppress(UnisonoError, RuntimeError, TimeoutError):  # the store has gone; this rank says so itself
                self._store.set_first(END, message_of(error, self._rank).text())

    def _give_up(self, error: BaseException) -> None:
        """Publish why there is no group. Rank 0's process, which may run the store, stays until the others know."""
        self._publish_failure(error)
        with suppress(UnisonoError, RuntimeError, TimeoutError):
            if self._rank and self._store.check([END]):
                self._store.add(TOLD, 1)
            elif not self._rank:
                # After a time-out, a rank that comes late waits for the next meeting.
                late = self._absent() if isinstance(error, WaitTimeout) else []
                others = (rank for rank in range(1, self._size) if rank not in late and not self._has_died(rank))
                stay_for(self._met_at, sum(not self._why_absent(rank) for rank in others))

    def _read(self, key: str, teller: int = 0) -> MeetingMessage:
        """Await a rank's message. Raises if the message says why there is no group."""
        return self._heed(self._await(key, teller), teller)

    def _heed(self, said: bytes, teller: int = 0) -> MeetingMessage:
        message = MeetingMessage.read(said, self._size, teller)
        if error := why_ended(message, self._rank, time.monotonic() - self._start):
            raise error
        return message

    def _identity(self, rank: int) -> Identity:
        if rank not in self.identities:
            self.identities[rank] = read_identity(rank, self._await(f"rank {rank}", rank))
        return self.identities[rank]

    def _await(self, key: str, teller: int) -> bytes:
        """The value of a key, once the store has it."""
        say_at = time.monotonic() + _SAY_S
        waits([teller], _TO_DO[key.partition(" ")[0]], self._where)
        with self._at_store():
            while (said := self._store.value(key, min(_CHECK_S, self._deadline - time.monotonic()))) is None:
                if time.monotonic() >= self._deadline:
                    return self._stop_waiting(key, teller)
                self._find_one()
                reason = self._why_absent(teller)
                self._look()
                self._refuse(reason)
                if self._rank == 0:  # the others wait for it
                    self._store.set(BEAT, f"{time.monotonic_ns()}")
                    come = key == f"rank {teller}"
                    if come and time.monotonic() >= say_at:
                        say_at += _SAY_S
                        waits(self._absent() or [teller], _TO_DO["rank"], self._where)
                    waits_still((lambda: self._absent() or [teller]) if come else None)
                elif key == "rank 0":
                    waits_still()
            return said

    def _stop_waiting(self, key: str, teller: int) -> bytes:
        """This rank's time is up: raise the error, or return how the meeting has ended."""
        absent = self._absent()
        if not absent and self._rank:
            self._await_end()
        error = self._timeout(absent or [teller])
        if key == END:  # a rank that waits for it has written all that the others need
            return self._leave(error)
        raise error

    def _find_one(self) -> None:
        """Look for one more rank between this one and the next that is known on this host. So each rank soon watches
        the next one that has come, whatever it waits for, and a look is one question.
        """
        unknown = []
        for after in range(1, self._size):
            rank = (self._rank + after) % self._size
            if rank not in self.identities:
                unknown.append(rank)
            elif self.identities[rank].place == self._home.place:
                break
        if unknown:
            self._looks += 1
            rank = unknown[self._looks % len(unknown)]
            if (said := self._store.now(f"rank {rank}")) is not None:
                self.identities[rank] = read_identity(rank, said)

    def _look(self) -> bool:
        """Has the meeting ended with a group? Raises why it has ended, or PeerGone for a process that has ended before
        it could say why, or do its part.
        """
        dead = self._dead()  # before the look at the store: a process that ends has written there first
        if (said := self._store.now(END)) is not None:
            self._heed(said)
        elif dead:
            raise dead
        return said is not None

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

    def _await_end(self) -> None:
        """Raise the reason why there is no group, if it comes soon, or PeerGone."""
        until = time.monotonic() + _REASON_S
        with self._at_store():
            while not self._look() and time.monotonic() < until:
                time.sleep(_ASK_S)

    def _leave(self, error: WaitTimeout) -> bytes:
        """This rank's time is up, and others count on it: return how the meeting has ended. If it has not, end it and
        raise the error: else the others could form a group without this rank.
        """
        own = MeetingMessage(missing=(self._rank,)).text().encode()
        with self._at_store():
            said = self._store.set_first(END, own.decode())
        if said == own:
            raise error
        self._heed(said)
        return said

    def _at_store(self) -> AbstractContextManager[None]:
        """If the store has gone, raise which rank has died, or that no rank waits at the store any longer."""
        return at_store(self._where, self._rank, self._start, self._look_at_peers)

    def _absent(self, ranks: Sequence[int] = ()) -> list[int]:
        """Which of these ranks, or of all, have not come. A question is about many ranks: most of them have come."""
        ranks = ranks or range(self._size)
        if self._store.check([f"rank {rank}" for rank in ranks]):
            return []
        if len(ranks) == 1:
            return list(ranks)
        middle = len(ranks) // 2
        return self._absent(ranks[:middle]) + self._absent(ranks[middle:])

    def _timeout(self, ranks: Sequence[int]) -> WaitTimeout:
        return missing(tuple(ranks), self._rank, time.monotonic() - self._start)
