"""Groups that ranks of other hosts use no more: an answered ticket brings the last words of their members.

Two runs, each with a group of its own, whose members come, speak, ask, forget it or die in any order, over a network
that loses, repeats and delays. In the second one, ranks may leave the world, and with its last rank a sentinel leaves.
A ticket brings all that the members had said when it was asked for. In some scenes sentinels are killed now and then.
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from unittest.mock import patch

import pytest

from tests.support.fake_network import START, FakeNetwork
from unisono.engine.memory.board import LINE
from unisono.hosts.sentinel import board_replicas, wire
from unisono.hosts.sentinel.state_machine import Ended, Event, Said

HOSTS = [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
RUNS = (8, 9)  # numbers of their groups
SEEDS = range(120)
WAKES, MOST_WORDS, MOST_KILLS = 0.3, 5, 20


class Scene(FakeNetwork):
    """Two runs whose order of events a number says. faults: what has gone wrong."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        loss, twice, slow_s = draw.choice([0.1, 0.3]), draw.choice([0.0, 0.3]), draw.choice([0.002, 0.02, 0.1])
        self._kills, self._kill_at, self._left = random.Random(seed + 1), 0.0, draw.choice([0, MOST_KILLS])
        super().__init__(HOSTS, seed, loss, twice, slow_s, silent_s=6.0, kills=self._left > 0)
        self.asked: list[tuple[int, list[int]]] = []  # of each ticket, its group, and what the members had said
        self.answered: set[object] = set()
        self.faults: list[str] = []
        self._dead: set[int] = set()
        self._said, self._ended = list[Said](), set[int]()

    def step(self, host: int, event: Event) -> None:
        if isinstance(event, Said) and event.word in ("register", "forget", "ask", "close") and event not in self._said:
            self._said.append(event)
        if isinstance(event, Ended):
            self._ended.add(event.rank)
        if not self._left or self.now < self._kill_at or not self._lives(host):
            super().step(host, event)
            return
        self._left, self._kill_at = self._left - 1, self.now + self._kills.expovariate(100.0)
        if self._kills.random() < 0.5:  # it is killed before it can say what follows
            self.machines[host].step(event, self.now)
        self.kill(host)
        again = [said for said in self._said if said.rank % 3 == host and said.rank not in self._ended]
        for one in [event, *again] if isinstance(event, Ended) else again:
            super().step(host, one)

    def deliver(self, host: int) -> None:
        before = len(self.told[host])
        super().deliver(host)
        for rank, (word, ticket, *_) in self.told[host][before:]:
            if word == "forgotten":
                self._said = [said for said in self._said if said.rank != rank or said.rest[:1] != [ticket]]
            if word == "fresh" and isinstance(ticket, int):
                self._said = [said for said in self._said if said.word != "ask" or said.rest[1] != ticket]
                self.answered.add(ticket)
                gid, said = self.asked[ticket]
                copies = [self.memories[host].said(gid, member) for member in range(len(said))]
                if any(copy < number for copy, number in zip(copies, said, strict=True)):
                    self.faults.append(f"ticket {ticket} brings {copies} instead of {said}")

    def play(self) -> Sequence[str]:
        for gid in RUNS:
            living = sorted({*range(9)} - self._dead)
            self._use(gid, self.draw.sample(living, self.draw.randrange(2, len(living) + 1)))
        return self.faults

    def _use(self, gid: int, members: Sequence[int]) -> None:
        """The first member is the last one in the group, and may be the last one that comes."""
        draw, (first, *others) = self.draw, members
        leaving = [host for host in range(3) if host != first % 3 and gid == RUNS[-1] and draw.random() < 0.5]
        for host in leaving:
            for rank in set(HOSTS[host]) - set(members):
                self.step(host, Said(rank, "close"))
        left = {rank: Said(rank, "close") if rank % 3 in leaving else Said(rank, "forget", [gid]) for rank in others}
        left |= {rank: Ended(rank, "died") for rank in others if draw.random() < 0.1}
        self._dead |= {rank for rank, how in left.items() if isinstance(how, Ended)}
        todo = {rank: ["come", *draw.choices(["speak", "ask"], k=MOST_WORDS), "leave"] for rank in others}
        if draw.random() < 0.5:
            self._come(gid, members, first)
        while todo:
            rank = draw.choice(sorted(todo))
            match todo[rank].pop(0):
                case "come":
                    self._come(gid, members, rank)
                case "speak":
                    self._speak(gid, members, rank)
                case "ask":
                    self._ask(gid, members, rank)
                case "leave":
                    self._speak(gid, members, rank)
                    self.step(rank % 3, left[rank])
                    del todo[rank]
            self.run(draw.choice([0.0, 0.0, 0.01]))
        self.run(draw.choice([0.0, 0.1, 1.0]))
        self._come(gid, members, first)
        ticket = self._ask(gid, members, first)
        with suppress(AssertionError):
            self.until(lambda: ticket in self.answered)
        self.faults += [] if ticket in self.answered else [f"nobody answers in group {gid}"]
        self.step(first % 3, Said(first, "forget", [gid]))

    def _come(self, gid: int, members: Sequence[int], rank: int) -> None:
        self.step(rank % 3, Said(rank, "register", [gid, START, members]))

    def _speak(self, gid: int, members: Sequence[int], rank: int) -> None:
        """Write the next number on the line, as each call does, and perhaps on the board, as few do."""
        memory, member = self.memories[rank % 3], members.index(rank)
        board = memory.read(gid, member)[LINE:]
        memory.say(gid, member, memory.said(gid, member) + 1)
        if self.draw.random() < 0.5:
            memory.pages[gid, member] = memory.pages[gid, member][:LINE] + board
        if self.draw.random() < WAKES:
            self.step(rank % 3, Said(rank, "wake", [gid]))

    def _ask(self, gid: int, members: Sequence[int], rank: int) -> int:
        self.asked.append((gid, [self.memories[other % 3].said(gid, k) for k, other in enumerate(members)]))
        self.step(rank % 3, Said(rank, "ask", [gid, len(self.asked) - 1]))
        return len(self.asked) - 1


def faults(seed: int) -> Sequence[str]:
    """In some scenes, one group at a time is kept early or forgotten, and few pages fit together."""
    draw = random.Random(seed)
    with (
        patch.object(board_replicas, "_MOST_KEPT", draw.choice([1, 1024])),
        patch.object(wire, "_USUAL_BYTES", draw.choice([80, 1200])),
    ):
        return Scene(seed).play()


@pytest.mark.parametrize("seed", SEEDS)
def test_answered_ticket_brings_all_words(seed: int) -> None:
    assert not faults(seed)
