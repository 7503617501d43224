"""The exact simulator: a simulation, event by event, of what `clocks` plays round by round. For small systems.

Messages are flows; at every moment they share the links by max-min fairness (Bertsekas and Gallager 1992, 6.5.2), so
messages of different rounds meet if they do. Nothing is taken from `contention` or `clocks`: only the network and the
messages are the same.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from unisono.schedule.simulate.networks import NO_LINK, Network, Numbers
from unisono.schedule.simulate.table_messages import Messages

_ZERO = 1e-12


def play_exactly(sections: Sequence[Messages], network: Network, nbytes: float) -> float:
    """Seconds until the last rank is ready, for every message of a table. It takes minutes for hundreds of ranks."""
    assert all(section.weight == 1 for section in sections)
    return _Play(sections, network, nbytes).run()


def fair_rates(routes: Sequence[Sequence[int]], rates: Numbers) -> list[float]:
    """Bytes per second of each flow by max-min fairness: none gets more unless one that has less loses some."""
    room = {link: float(rates[link]) for route in routes for link in route}
    users: dict[int, set[int]] = defaultdict(set)
    for flow, route in enumerate(routes):
        for link in route:
            users[link].add(flow)
    got = [0.0] * len(routes)
    while users:
        link = min(users, key=lambda link: room[link] / len(users[link]))
        share = room[link] / len(users[link])
        for flow in list(users[link]):
            got[flow] = share
            for other in routes[flow]:
                room[other] = max(room[other] - share, 0.0)
                users[other].discard(flow)
                if not users[other]:
                    del users[other]
    return got


class _Play:
    """The state: where each rank is, which flows there are, and what happens when."""

    def __init__(self, sections: Sequence[Messages], network: Network, nbytes: float) -> None:
        self.network, self.now = network, 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.src: list[int] = []
        self.dst: list[int] = []
        self.bytes: list[float] = []
        self.work: list[float] = []
        self.far: list[bool] = []
        self.eager: list[bool] = []
        self.latency: list[float] = []
        self.routes: list[list[int]] = []
        # For each rank its rounds, in order: the messages it sends, and those it receives.
        self.program: list[list[tuple[list[int], list[int]]]] = [[] for _ in range(network.ranks)]
        for section in sections:
            for _ in range(round(section.times)):
                self._add(section, nbytes)
        self.at = [-1] * network.ranks
        self.open = [0] * network.ranks
        self.busy = [0.0] * network.ranks
        self.entered: dict[int, int] = defaultdict(int)  # message -> how many of its two ends are in its round
        self.waiting: dict[int, list[int]] = defaultdict(list)
        self.taken: set[int] = set()
        self.flows: dict[int, float] = {}

    def _add(self, section: Messages, nbytes: float) -> None:
        network = self.network
        route = network.route(section.src, section.dst)
        latency = network.latency(section.src, section.dst, route)
        for a, b in zip(section.starts[:-1].tolist(), section.starts[1:].tolist(), strict=True):
            sends: dict[int, list[int]] = defaultdict(list)
            gets: dict[int, list[int]] = defaultdict(list)
            for k in range(a, b):
                number, src, dst = len(self.src), int(section.src[k]), int(section.dst[k])
                self.src.append(src)
                self.dst.append(dst)
                self.bytes.append(float(section.share[k]) * nbytes)
                self.work.append(float(section.added[k]) * nbytes / network.hardware.combine_bytes_per_s)
                self.far.append(bool(network.places[src] != network.places[dst]))
                self.eager.append(self.far[-1] and self.bytes[-1] <= network.hardware.eager_bytes)
                self.latency.append(float(latency[k]))
                self.routes.append([link for link in route[:, k].tolist() if link != NO_LINK])
                sends[src].append(number)
                gets[dst].append(number)
            for rank in sorted(sends.keys() | gets.keys()):
                self.program[rank].append((sends[rank], gets[rank]))

    def run(self) -> float:
        for rank in range(self.network.ranks):
            self._at(0.0, lambda rank=rank: self._enter(rank))  # type: ignore[misc]
        rates: list[float] = []
        while self.events or self.flows:
            names = list(self.flows)
            rates = fair_rates([self.routes[flow] for flow in names], self.network.rates)
            ends = [self.now + self.flows[flow] / rate for flow, rate in zip(names, rates, strict=True)]
            then = min([*ends, self.events[0][0] if self.events else np.inf])
            for flow, rate in zip(names, rates, strict=True):
                self.flows[flow] -= rate * (then - self.now)
            self.now = then
            limit = then * (1 + _ZERO)
            for flow, end in zip(names, ends, strict=True):
                if end <= limit:
                    del self.flows[flow]
                    self._drained(flow)
            while self.events and self.events[0][0] <= limit:
                heapq.heappop(self.events)[2]()
        return max(self.now, *self.busy)

    def _at(self, when: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what))

    def _enter(self, rank: int) -> None:
        """A rank begins its next round."""
        self.at[rank] += 1
        if self.at[rank] == len(self.program[rank]):
            return
        sends, gets = self.program[rank][self.at[rank]]
        distant = [k for k in sends if self.far[k]]
        self.open[rank] = len(gets) + len(distant)
        for place, k in enumerate(distant):
            begin = self._start if self.eager[k] else self._meet
            self._at(self.now + place * self.network.hardware.message_s, lambda k=k, begin=begin: begin(k))  # type: ignore[misc]
        for k in sends:
            if not self.far[k]:
                self._at(self.now + self.latency[k], lambda k=k: self._meet(k))  # type: ignore[misc]
        for k in gets:
            self.taken.add(k)
            if not self.eager[k]:
                self._meet(k)
        for k in self.waiting.pop(rank, []):
            self._arrived(k)
        if not self.open[rank]:
            self._at(self.now, lambda: self._enter(rank))

    def _meet(self, k: int) -> None:
        """One end of a message is ready for it; the second starts it."""
        self.entered[k] += 1
        if self.entered[k] == 2:
            self._start(k)

    def _start(self, k: int) -> None:
        if self.bytes[k] > 0:
            self.flows[k] = self.bytes[k]
        else:
            self._drained(k)

    def _drained(self, k: int) -> None:
        if self.far[k]:
            self._at(self.now + self.latency[k], lambda: self._arrived(k))
            self._done(self.src[k])
        else:
            self._arrived(k)

    def _arrived(self, k: int) -> None:
        rank = self.dst[k]
        if self.far[k] and k not in self.taken:
            self.waiting[rank].append(k)
            return
        self.busy[rank] = max(self.busy[rank], self.now) + self.work[k]
        self._at(self.busy[rank], lambda: self._done(rank))

    def _done(self, rank: int) -> None:
        """One of the things that a rank's round consists of is done."""
        self.open[rank] -= 1
        if not self.open[rank]:
            self._enter(rank)
