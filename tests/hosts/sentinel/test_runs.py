"""A world whose ranks make one run after another: a copied word of the last run says nothing in this one.

Sentinels, boards and a bad network, as they are; who gives the runs is this test. A rank may be seen to have returned
only once it has, in this run; and if it has, all hosts hear of it. Each small damage to a board must show.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from tests.support.fake_network import WORLD, FakeMemory, FakeNetwork
from unisono.base.records import Departure, DepartureKind
from unisono.engine.memory.board import _GONE, _RUN, BOARD_BYTES, LINE, Board
from unisono.hosts.sentinel.regions import _Pages
from unisono.hosts.sentinel.state_machine import Ended, Said

HOSTS = [(0, 2), (1, 3)]
RANKS = range(4)
RETURNED = Departure(DepartureKind.RETURNED, "returned from the function")
RUNS = 4
SEEDS = range(60)


class Memory(FakeMemory):
    """The boards of the world on one host. returned: who has, in this run. lies: of whom else it is said."""

    def __init__(self, board: type[Board], returned: set[int]) -> None:
        super().__init__()
        self.boards = [board(memoryview(bytearray(BOARD_BYTES))) for _ in RANKS]
        self.returned, self.lies = returned, set[int]()
        self._members = [_Pages(memoryview(bytearray(LINE)), board) for board in self.boards]

    def read(self, gid: int, member: int) -> bytes:
        assert gid in self.groups
        return self._members[member].read()

    def write(self, gid: int, member: int, image: bytes, *, keep_gone: bool) -> None:
        assert gid in self.groups
        self._members[member].write(image, keep_gone=keep_gone)
        self.look()

    def depart(self, rank: int, how: int, words: str) -> None:
        self.boards[rank].set_gone(DepartureKind(how), words)

    def departure(self, rank: int) -> Departure | None:
        return self.boards[rank].gone

    def look(self) -> None:
        self.lies |= {rank for rank in RANKS if self.boards[rank].gone} - self.returned


Begin = Callable[[Sequence[Memory], int], None]


def everywhere(memories: Sequence[Memory], run: int) -> None:
    """What `RankProcesses.run` does."""
    for memory in memories:
        for board in memory.boards:
            board.begin_run(run)


def at_home(memories: Sequence[Memory], run: int) -> None:
    for memory, ranks in zip(memories, HOSTS, strict=True):
        for rank in ranks:
            memory.boards[rank].begin_run(run)


def fault(seed: int, board: type[Board] = Board, begin: Begin = everywhere) -> str:
    """What goes wrong in some runs whose order of events this number says; "": nothing."""
    draw, returned = random.Random(seed), set[int]()
    loss, twice, slow_s = draw.choice([0.0, 0.2]), draw.choice([0.0, 0.3]), draw.choice([0.0, 0.01, 0.1])
    net = FakeNetwork(HOSTS, seed, loss, twice, slow_s, memory=partial(Memory, board, returned))
    memories = [memory for memory in net.memories if isinstance(memory, Memory)]
    net.register()

    def pass_time(most_s: float) -> None:
        asker = draw.choice(RANKS)
        if draw.random() < 0.5:
            net.step(asker % 2, Said(asker, "ask", [WORLD, draw.randrange(1000)]))
        net.run(draw.random() * most_s)

    for run in range(1, RUNS + 1):
        returned.clear()
        begin(memories, run)
        for rank in draw.sample(RANKS, len(RANKS)):
            pass_time(0.03)
            returned.add(rank)
            memories[rank % 2].boards[rank].set_gone(*RETURNED)
            net.step(rank % 2, Said(rank, "wake", [WORLD]))
        pass_time(0.01)
        if run == RUNS or draw.random() < 0.3:
            net.run(3.0)
            if any(memory.boards[rank].gone != RETURNED for memory in memories for rank in RANKS):
                return f"not everybody hears who has returned in run {run}"
        if any(memory.lies for memory in memories):
            return f"run {run} hears of earlier ones"
    return ""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_is_gone_only_if_it_has_returned_in_this_run(seed: int) -> None:
    assert not fault(seed)


class TakenBack(Board):
    """A word has no run; who begins one takes the words back."""

    @property
    def run(self) -> int:
        return 0

    def begin_run(self, number: int) -> None:  # noqa: ARG002
        self._write(_GONE, 0, b"")


class OfAnyRun(Board):
    """The number of a word is not looked at."""

    def _read(self, at: int, number: int) -> bytes:
        return self._latest(at)[1] if at == _GONE else super()._read(at, number)


class RunCopied(Board):
    """The run is copied, too."""

    def copy(self, image: bytes, *, keep_gone: bool = False) -> None:
        super().copy(image, keep_gone=keep_gone)
        self._page[_RUN : _RUN + 8] = image[_RUN : _RUN + 8]


class FirstStays(Board):
    """The first word stays, also when its run is over."""

    def set_gone(self, how: DepartureKind, words: str) -> None:
        if not self._latest(_GONE)[1]:
            super().set_gone(how, words)


class Uncopied(Board):
    """A word is copied only where none is."""

    def copy(self, image: bytes, *, keep_gone: bool = False) -> None:
        super().copy(image, keep_gone=keep_gone or bool(self._latest(_GONE)[1]))


MUTANTS: list[tuple[type[Board], Begin]] = [
    (TakenBack, everywhere), (OfAnyRun, everywhere), (RunCopied, everywhere), (FirstStays, everywhere),
    (Uncopied, everywhere), (Board, at_home),
]  # fmt: skip


@pytest.mark.parametrize(("board", "begin"), MUTANTS, ids=lambda value: value.__name__)
def test_each_part_of_it_is_needed(board: type[Board], begin: Begin) -> None:
    assert any(fault(seed, board, begin) for seed in SEEDS)


def test_that_a_rank_had_returned_is_no_word_about_the_end_of_its_process() -> None:
    """It dies when all have returned, and the others hear of it in the next run."""
    killed = Departure(DepartureKind.DIED, "was killed by signal 9 (SIGKILL)")
    net = FakeNetwork(HOSTS, memory=partial(Memory, Board, set(RANKS)))
    memories = [memory for memory in net.memories if isinstance(memory, Memory)]
    net.register()
    everywhere(memories, 1)
    memories[0].boards[2].set_gone(*RETURNED)
    net.step(0, Said(2, "wake", [WORLD]))
    net.run(0.1)
    net.step(0, Ended(2, killed.words))
    net.run(0.1)
    everywhere(memories, 2)
    assert net.heard(1, "gone") == net.heard(0, "gone") == [["gone", 2, *killed]]
