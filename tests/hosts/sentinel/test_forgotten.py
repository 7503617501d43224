"""Groups that ranks of other hosts use no more: an answered ticket brings the last words of their members.

Two runs, each with a group of its own, whose members come, speak, ask, forget it or die in any order, over a network
that loses, repeats and delays. In the second one, ranks may leave the world, and with its last rank a sentinel leaves.
A ticket brings all that the members had said when it was asked for. Each small damage to the protocol must show.
"""

import random
from collections.abc import Sequence
from contextlib import suppress
from unittest.mock import patch

import pytest

from tests.support.fake_network import START, FakeNetwork
from unisono.engine.memory.board import LINE
from unisono.hosts.sentinel import board_replicas, state_machine, wire
from unisono.hosts.sentinel.board_replicas import Copies
from unisono.hosts.sentinel.state_machine import Ended, Event, Said
from unisono.hosts.sentinel.wire import MemberPage, Pages

HOSTS = [(0, 3, 6), (1, 4, 7), (2, 5, 8)]
RUNS = (8, 9)  # numbers of their groups
SEEDS = range(120)
WAKES, MOST_WORDS = 0.3, 5


class Scene(FakeNetwork):
    """Two runs whose order of events a number says. faults: what has gone wrong."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(seed)
        loss, twice, slow_s = draw.choice([0.1, 0.3]), draw.choice([0.0, 0.3]), draw.choice([0.002, 0.02, 0.1])
        super().__init__(HOSTS, seed, loss, twice, slow_s, silent_s=6.0)
        self.asked: list[tuple[int, list[int]]] = []  # of each ticket, its group, and what the members had said
        self.answered: set[object] = set()
        self.faults: list[str] = []
        self._dead: set[int] = set()

    def step(self, host: int, event: Event) -> None:
        before = len(self.told[host])
        super().step(host, event)
        for _, (word, ticket, *_) in self.told[host][before:]:
            if word == "fresh" and isinstance(ticket, int):
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


def faults(seed: int, copies: type[Copies] = Copies) -> Sequence[str]:
    """In some scenes, few groups are kept early, and few pages fit together."""
    draw = random.Random(seed)
    with (
        patch.object(state_machine, "Copies", copies),
        patch.object(board_replicas, "_MOST_EARLY", draw.choice([0, 256])),
        patch.object(wire, "_USUAL_BYTES", draw.choice([80, 1200])),
    ):
        return Scene(seed).play()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ticket_brings_what_the_members_had_said(seed: int) -> None:
    assert not faults(seed)


class PagesApart(Copies):
    """A host that has forgotten a group says so without its last pages, which it has sent before."""

    def _drop_unused(self, gid: int) -> None:
        super()._drop_unused(gid)
        if gid in self._forgotten:
            self._forgotten[gid] = tuple(page._replace(stamp=0) for page in self._forgotten[gid])


class NobodyComes(Copies):
    """When all ranks that have used a group have forgotten it, its host has, too."""

    def _drop_unused(self, gid: int) -> None:
        group = self._groups[gid]
        forgotten, group.forgotten = group.forgotten, set(group.members) - group.users
        super()._drop_unused(gid)
        group.forgotten = forgotten


class BoardsOnly(Copies):
    """What has changed on lines only is not pushed."""

    def push(self, rank: int, only: int | None, now: float) -> None:
        for gid, group in self._groups.items():
            for member, before in group.pushed.items():
                image = self._memory.read(gid, member)
                group.pushed[member] = image if before[LINE:] == image[LINE:] else before
        super().push(rank, only, now)


class AllAcknowledged(Copies):
    """Also what is not kept is acknowledged."""

    def _keep(self, gid: int, sender: int, page: MemberPage) -> bool:
        return super()._keep(gid, sender, page) or True


class AnyOrder(Copies):
    """What comes is copied, old or new."""

    def _copy(self, group: board_replicas._Group, gid: int, sender: int, page: MemberPage) -> bool:
        group.stamps.clear()
        return super()._copy(group, gid, sender, page)


class EachIsAll(Copies):
    """One datagram is all that a host answers."""

    def pages(self, sender: int, body: Pages, now: float) -> None:
        pull = self._pulls.get(body.gid)
        if pull and pull.request == body.request and body.pages and sender in pull.missing:
            pull.missing[sender] &= {page.member for page in body.pages}
        super().pages(sender, body, now)


class AnyQuestion(Copies):
    """An answer to an earlier question is taken for one to this."""

    def pages(self, sender: int, body: Pages, now: float) -> None:
        pull = self._pulls.get(body.gid)
        super().pages(sender, body._replace(request=pull.request) if pull and body.request else body, now)


class LeavesAtOnce(Copies):
    """A sentinel leaves before its last words have arrived."""

    @property
    def settled(self) -> bool:
        return True


MUTANTS = [
    PagesApart, NobodyComes, BoardsOnly, AllAcknowledged,
    AnyOrder, EachIsAll, AnyQuestion, LeavesAtOnce,
]  # fmt: skip


@pytest.mark.parametrize("copies", MUTANTS, ids=lambda copies: copies.__name__)
def test_each_part_of_it_is_needed(copies: type[Copies]) -> None:
    assert any(faults(seed, copies) for seed in SEEDS)
