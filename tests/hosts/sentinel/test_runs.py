"""A world whose ranks make one run after another: a copied word of the last run says nothing in this one.

Sentinels, boards and a bad network, as they are; who gives the runs is this test.
"""

import random
from collections.abc import Collection
from functools import partial
from mmap import mmap

import pytest

from tests.support.fake_network import KILLED, START, WORLD, FakeNetwork
from unisono.base.records import Departure, DepartureKind
from unisono.hosts.sentinel.regions import Regions
from unisono.hosts.sentinel.state_machine import Ended, Said

HOSTS, RANKS, RUNS = [(0, 2), (1, 3)], range(4), 4
RETURNED = Departure(DepartureKind.RETURNED, "returned from the function")


class Memory(Regions):
    """The boards of the world on one host. returned: who has, in this run. lies: of whom else it is said."""

    def __init__(self, returned: Collection[int] = ()) -> None:
        super().__init__(mmap(-1, 1 << 17), START, len(RANKS))
        self.boards, self.returned, self.lies = [member.board for member in self._world], returned, set[int]()

    def write(self, gid: int, member: int, image: bytes, *, keep_gone: bool) -> None:
        super().write(gid, member, image, keep_gone=keep_gone)
        self.lies |= {rank for rank in RANKS if self.boards[rank].gone} - {*self.returned}

    def begin(self, run: int) -> None:
        for board in self.boards:
            board.run = run


@pytest.mark.parametrize("seed", range(60))
def test_departure_is_of_this_run(seed: int) -> None:
    """A rank may be seen to have returned only once it has, in this run; and if it has, all hosts hear of it."""
    draw, returned = random.Random(seed), set[int]()
    loss, twice, slow_s = draw.choice([0.0, 0.2]), draw.choice([0.0, 0.3]), draw.choice([0.0, 0.01, 0.1])
    net = FakeNetwork(HOSTS, seed, loss, twice, slow_s, memory=partial(Memory, returned), registered=True)
    for run in range(1, RUNS + 1):
        returned.clear()
        for memory in net.memories:
            memory.begin(run)
        for rank in draw.sample(RANKS, len(RANKS)):
            asker = draw.choice(RANKS)
            if draw.random() < 0.5:
                net.step(asker % 2, Said(asker, "ask", [WORLD, draw.randrange(1000)]))
            net.run(draw.random() * 0.03)
            returned.add(rank)
            net.memories[rank % 2].boards[rank].set_gone(*RETURNED)
            net.step(rank % 2, Said(rank, "wake", [WORLD]))
        net.run(draw.random() * 0.01)
        if run == RUNS or draw.random() < 0.3:
            net.run(3.0)
            assert all(memory.boards[rank].gone == RETURNED for memory in net.memories for rank in RANKS), run
        assert not any(memory.lies for memory in net.memories), f"run {run} hears of earlier ones"


def test_death_after_return_is_reported() -> None:
    """It dies when all have returned, and the others hear of it in the next run."""
    net = FakeNetwork(HOSTS, memory=partial(Memory, RANKS), registered=True)
    for memory in net.memories:
        memory.begin(1)
    net.memories[0].boards[2].set_gone(*RETURNED)
    net.step(0, Said(2, "wake", [WORLD]))
    net.run(0.1)
    net.step(0, Ended(2, KILLED.words))
    net.run(0.1)
    assert net.heard(1, "gone") == net.heard(0, "gone") == [["gone", 2, *KILLED]]


@pytest.mark.parametrize("how", DepartureKind)
@pytest.mark.parametrize("run", [1, 2])
def test_abort_of_this_run_replaces_a_departure(how: DepartureKind, run: int) -> None:
    there, here = Memory(), Memory()
    there.boards[2].run, here.boards[2].run = 1, run
    there.boards[2].set_gone(how, "said")
    here.boards[2].set_gone(DepartureKind.LEFT, "known")
    for memory in (there, here):
        memory.add(WORLD, START, len(RANKS))
    here.write(WORLD, 2, there.read(WORLD, 2), keep_gone=True)
    aborted = run == 1 and how is DepartureKind.ABORTED
    assert here.boards[2].gone == (Departure(how, "said") if aborted else Departure(DepartureKind.LEFT, "known"))
