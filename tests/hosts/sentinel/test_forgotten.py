"""Groups that ranks of other hosts use no more: an answered ticket brings the last words of their members.

Two runs, each with a group of its own, whose members come, speak, ask, forget it or die in any order, over a network
that loses, repeats and delays. In the second one, ranks may leave the world, and with its last rank a sentinel leaves.
A ticket brings all that the members had said when it was asked for, and the others have what its host had pushed.
Hosts that stay know the dead. At last all leave, and no host is lost. In some scenes sentinels are killed now and then.
"""

import random
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from tests.support.fake_network import START, FakeNetwork
from unisono.engine.memory.board import LINE
from unisono.hosts.sentinel import board_replicas, wire
from unisono.hosts.sentinel.state_machine import Ended, Event, Said

RUNS = (8, 9)  # numbers of their groups
WAKES, MOST_WORDS, MOST_KILLS = 0.3, 5, 20


class Scene(FakeNetwork):
    """Two runs whose order of events a number says."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        loss, twice, slow_s = draw.choice([0.1, 0.3]), draw.choice([0.0, 0.3]), draw.choice([0.002, 0.02, 0.1])
        n = self._n = draw.choice([2, 3, 3, 4])
        self._kills, self._kill_at, self._left = random.Random(seed + 1), 0.0, draw.choice([0, MOST_KILLS])
        hosts = [(k, k + n, k + 2 * n) for k in range(n)]
        super().__init__(hosts, seed, loss, twice, slow_s, silent_s=6.0, kills=self._left > 0)
        self.asked: list[tuple[int, list[int], dict[int, int]]] = []
        """Of each ticket, its group, what the members had said, and what those of the host had pushed."""
        self._pushed: dict[tuple[int, int], int] = {}
        self.answered: set[object] = set()
        self._dead: set[int] = set()
        self._said, self._ended = list[Said](), set[int]()

    def _at(self, rank: int) -> int:
        """The host of a rank."""
        return rank % self._n

    def step(self, host: int, event: Event) -> None:
        if isinstance(event, Said) and event.word in ("register", "forget", "ask", "close") and event not in self._said:
            self._said.append(event)
        if isinstance(event, Ended):
            self._ended.add(event.rank)
        if not self._left or self.now < self._kill_at or not self.lives(host):
            super().step(host, event)
            return
        self._left, self._kill_at = self._left - 1, self.now + self._kills.expovariate(100.0)
        if self._kills.random() < 0.5:  # it is killed before it can say what follows
            self.machines[host].step(event, self.now)
        self.kill(host)
        again = [said for said in self._said if self._at(said.rank) == host and said.rank not in self._ended]
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
                gid, said, pushed = self.asked[ticket]
                copies = [self.memories[host].said(gid, member) for member in range(len(said))]
                assert all(copy >= number for copy, number in zip(copies, said, strict=True)), f"{copies}, not {said}"
                others = [memory for memory in self.memories if gid in memory.groups and not self._writes]
                assert all(memory.said(gid, k) >= number for memory in others for k, number in pushed.items()), pushed

    def play(self) -> None:
        for gid in RUNS:
            living = sorted({*range(3 * self._n)} - self._dead)
            self._use(gid, self.draw.sample(living, self.draw.randrange(2, len(living) + 1)))
        self.run(1.2)
        for host, memory in enumerate(self.memories):
            told = [value[1] for value in self.heard(host, "gone")]
            known = {rank for rank, how in memory.gone.items() if how.words == "died"}
            assert known == self._dead or self.machines[host].done, memory.gone
            assert len(told) == len({*told}) or self._writes, f"ranks are told more than once: {told}"
        for rank in {*range(3 * self._n)} - self._dead:
            self.step(self._at(rank), Said(rank, "close"))
        self.run(9.5)  # hosts may be silent for six seconds
        assert all(machine.done for machine in self.machines)
        assert not any(map(self.lost, range(self._n)))

    def _use(self, gid: int, members: Sequence[int]) -> None:
        """The first member is the last one in the group, and may be the last one that comes."""
        draw, (first, *others) = self.draw, members
        leaving = [
            host for host in range(self._n) if host != self._at(first) and gid == RUNS[-1] and draw.random() < 0.5
        ]
        for host in leaving:
            for rank in set(self.hosts[host]) - set(members):
                self.step(host, Said(rank, "close"))
        left = {
            rank: Said(rank, "close") if self._at(rank) in leaving else Said(rank, "forget", [gid]) for rank in others
        }
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
                    self.step(self._at(rank), left[rank])
                    del todo[rank]
            self.run(draw.choice([0.0, 0.0, 0.01]))
        self.run(draw.choice([0.0, 0.1, 1.0]))
        self._come(gid, members, first)
        ticket = self._ask(gid, members, first)
        self.until(lambda: ticket in self.answered)
        self.step(self._at(first), Said(first, "forget", [gid]))

    def _come(self, gid: int, members: Sequence[int], rank: int) -> None:
        self.step(self._at(rank), Said(rank, "register", [gid, START, members]))

    def _speak(self, gid: int, members: Sequence[int], rank: int) -> None:
        """Write the next number on the line, as each call does, and perhaps on the board, as few do."""
        memory, member = self.memories[self._at(rank)], members.index(rank)
        board = memory.read(gid, member)[LINE:]
        memory.say(gid, member, memory.said(gid, member) + 1)
        if self.draw.random() < 0.5:
            memory.pages[gid, member] = memory.pages[gid, member][:LINE] + board
        if self.draw.random() < WAKES:
            self._pushed[gid, member] = memory.said(gid, member)
            self.step(self._at(rank), Said(rank, "wake", [gid]))

    def _ask(self, gid: int, members: Sequence[int], rank: int) -> int:
        said = [self.memories[self._at(other)].said(gid, k) for k, other in enumerate(members)]
        pushed = {
            k: self._pushed.get((gid, k), 0) for k, other in enumerate(members) if self._at(other) == self._at(rank)
        }
        self.asked.append((gid, said, pushed))
        self.step(self._at(rank), Said(rank, "ask", [gid, len(self.asked) - 1]))
        return len(self.asked) - 1


@pytest.mark.parametrize("seed", range(120))
def test_answered_ticket_brings_all_words(seed: int) -> None:
    """In some scenes, one group at a time is kept early or forgotten, and few pages fit together."""
    draw = random.Random(seed)
    most_kept, usual_bytes = draw.choice([1, 1024]), draw.choice([80, 1200])
    with patch.object(board_replicas, "_MOST_KEPT", most_kept), patch.object(wire, "_USUAL_BYTES", usual_bytes):
        Scene(seed).play()
