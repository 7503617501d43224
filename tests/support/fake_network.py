"""Sentinels without processes: machines, a network that loses, repeats and reorders datagrams, a clock that jumps."""

import copy
import heapq
import itertools
import pickle
import random
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Any

from hypothesis import strategies as st

from unisono.base.records import Departure, DepartureKind
from unisono.hosts.sentinel.state_machine import Event, Said, SentinelState, Tick
from unisono.hosts.sentinel.wire import IMAGE_BYTES, Authenticator

WORLD, START = 7, 4096
_FAST_S = 0.0005
BAD_NETWORKS = {
    "seed": st.integers(0, 1 << 30),
    "loss": st.sampled_from([0.0, 0.1, 0.25]),
    "twice": st.sampled_from([0.0, 0.3]),
    "slow_s": st.sampled_from([0.0, 0.01, 0.1]),
}
KILLED = Departure(DepartureKind.DIED, "was killed by signal 9 (SIGKILL)")


def pairs(n: int) -> list[tuple[int, int]]:
    """Hosts of two ranks each, whose numbers are dealt out in turn."""
    return [(k, k + n) for k in range(n)]


class FakeMemory:
    """The shared memory of one host. pages: of each group and member."""

    def __init__(self) -> None:
        self.pages: dict[tuple[int, int], bytes] = {}
        self.gone: dict[int, Departure] = {}
        self.groups: set[int] = set()

    def add(self, gid: int, start: int, size: int) -> None:
        if start % START or not size:
            raise ValueError("no region")
        self.groups.add(gid)

    def remove(self, gid: int) -> None:
        self.groups.remove(gid)

    def read(self, gid: int, member: int) -> bytes:
        assert gid in self.groups
        return self.pages.get((gid, member), bytes(IMAGE_BYTES))

    def write(self, gid: int, member: int, image: bytes, *, keep_gone: bool) -> None:  # noqa: ARG002
        assert gid in self.groups
        self.pages[gid, member] = image

    def depart(self, rank: int, how: int, words: str) -> None:
        self.gone.setdefault(rank, Departure(DepartureKind(how), words))

    def count_news(self) -> None:
        """Nobody waits."""

    def sight(self, rank: int) -> str:
        return f"rank {rank} computes"

    def departure(self, rank: int) -> Departure | None:
        return self.gone.get(rank)

    def say(self, gid: int, member: int, number: int) -> None:
        """A member writes a number, all over its page."""
        self.pages[gid, member] = number.to_bytes(4, "little") * (IMAGE_BYTES // 4)

    def said(self, gid: int, member: int) -> int:
        """The number that a member has written, or its copy."""
        return int.from_bytes(self.pages.get((gid, member), b"")[:4], "little")


class FakeNetwork:
    """The machines of hosts with these ranks. told: of each host, all that its ranks have been told.

    silent_s: how long a host may be silent.

    loss, twice: how likely a datagram gets lost, or comes twice. slow_s: how long it takes at most. reaches: whether
    one host's datagrams get to another one. stopped: hosts that do nothing. memory: makes that of a host. kills: are
    sentinels killed?
    """

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        seed: int = 0,
        loss: float = 0.0,
        twice: float = 0.0,
        slow_s: float = 0.002,
        silent_s: float = 1.5,
        memory: Callable[[], Any] = FakeMemory,
        kills: bool = False,
        registered: bool = False,
    ) -> None:
        self.hosts, self.now, self._random = hosts, 100.0, random.Random(seed)
        self.loss, self.twice, self.slow_s = loss, twice, slow_s
        self.reaches: Callable[[int, int], bool] = lambda _a, _b: True
        self.stopped: set[int] = set()
        self.memories = [memory() for _ in hosts]
        names = [f"h{k}" for k in range(len(hosts))]
        regions: list[Any] = self.memories
        self.machines = [SentinelState(hosts, k, names, regions[k], self.now, silent_s) for k in range(len(hosts))]
        self.seals = [self._seal(k, [0] * len(hosts)) for k in range(len(hosts))]
        self.told: list[list[tuple[int | None, list[object]]]] = [[] for _ in hosts]
        self.sent = 0
        self._writes, self._estate = kills, [(object(), b"")] * len(hosts)
        """Host -> what its sentinel remembers, and in which form it is written down."""
        self._ticks = [self.now] * len(hosts)
        self._flying: list[tuple[float, int, int, bytes]] = []
        self._order = itertools.count()
        for host in range(len(hosts)):
            self.deliver(host)
        if registered:
            self.register()

    def register(self, gid: int = WORLD, members: Sequence[int] | None = None) -> None:
        members = range(sum(map(len, self.hosts))) if members is None else members
        for host, ranks in enumerate(self.hosts):
            for rank in ranks:
                if rank in members:
                    self.step(host, Said(rank, "register", [gid, START, members]))

    def speak(self, host: int, rank: int, number: int, gid: int = WORLD) -> None:
        """A rank of the host, which is this member, writes a number, and lets its sentinel push it."""
        self.memories[host].say(gid, rank, number)
        self.step(host, Said(rank, "wake", [gid]))

    def step(self, host: int, event: Event) -> None:
        self.machines[host].step(event, self.now)
        self.deliver(host)

    def kill(self, host: int) -> None:
        """Let another process go on in place of a sentinel. Ranks of the host have to say again what they have said."""
        self.memories[host] = copy.copy(self.memories[host])
        self.memories[host].groups = set()
        self.machines[host] = pickle.loads(self._estate[host][1])  # noqa: S301  written above
        self.machines[host].take_over(self.memories[host], int(self.now * 1e9))
        self.seals[host] = self._seal(host, self.seals[host]._highest)
        self.deliver(host)

    def _seal(self, host: int, highest: MutableSequence[int] | memoryview) -> Authenticator:
        return Authenticator(b"s" * 32, host, highest, int(self.now * 1e9))

    def deliver(self, host: int) -> None:
        """Give a machine's messages to the ranks and to the network, as the sentinel's process does."""
        machine = self.machines[host]
        if self._writes and self._estate[host][0] != machine.remembered:
            self._estate[host] = machine.remembered, pickle.dumps(machine)
        self.told[host] += machine.told
        machine.told = []
        for to, digest, body in machine.sent:
            data = self.seals[host].seal(to, digest, body)
            self.sent += 1
            for _ in range(1 + (self._random.random() < self.twice)):
                if self.reaches(host, to) and self._random.random() >= self.loss:
                    when = self.now + _FAST_S + self._random.random() * self.slow_s
                    heapq.heappush(self._flying, (when, next(self._order), to, data))
        machine.sent = []
        self._ticks[host] = self.now + machine.wake_in(self.now)

    def lives(self, host: int) -> bool:
        return host not in self.stopped and not self.machines[host].done

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            ticks = [(max(self.now, tick), host) for host, tick in enumerate(self._ticks) if self.lives(host)]
            tick, host = min(ticks, default=(end, 0))
            arrival = self._flying[0][0] if self._flying else end
            if min(tick, arrival) >= end:
                self.now = end
                return
            self.now = min(tick, arrival)
            if arrival <= tick:
                _, _, to, data = heapq.heappop(self._flying)
                if self.lives(to) and (datagram := self.seals[to].open(data)):
                    self.step(to, datagram)
            else:
                self.step(host, Tick())

    def until(self, condition: Callable[[], bool], most_s: float = 30.0) -> float:
        """Let time pass until this is true; how long it took."""
        began = self.now
        while not condition():
            assert self.now - began < most_s, "it did not happen"
            self.run(0.001)
        return self.now - began

    def heard(self, host: int, word: str) -> list[list[object]]:
        """What the ranks of a host have been told that begins with this word."""
        return [value for _, value in self.told[host] if value[0] == word]

    def lost(self, host: int) -> set[int]:
        """The hosts that the ranks of a host take for lost."""
        silent = {value[1] for value in self.heard(host, "gone") if "which has been silent" in str(value[3])}
        return {other for other, ranks in enumerate(self.hosts) if not silent.isdisjoint(ranks)}

    def cut_off(self) -> set[int]:
        return {host for host in range(len(self.hosts)) if self.heard(host, "cut")}

    def cut(self, *sides: Iterable[int]) -> None:
        """Only hosts of one side reach each other."""
        side = {host: number for number, hosts in enumerate(sides) for host in hosts}
        self.reaches = lambda a, b: side[a] == side[b]
