"""How ranks wait for words in shared memory: they spin, yield and sleep."""

import os
import random
import threading
import time
import weakref
from functools import partial

import numpy as np
import pytest
import torch

import unisono
from tests.conftest import examples
from tests.support.on_ranks import in_new_world
from tests.support.programs import Python, free_port, place
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.engine.compile.program import LEARNED_WORDS, StateWord
from unisono.engine.kernels import kernel
from unisono.engine.mailbox.poller import ZERO, Poller

NEVER = 1 << 62


@pytest.mark.parametrize(("slow_yield", "before", "sleeps"), [(0, NEVER, True), (0, 0, False), (1 << 50, NEVER, False)])
def test_slow_yields_that_follow_each_other_end(slow_yield: int, before: int, sleeps: bool) -> None:
    """A rank then sleeps for some time. slow_yield: any yield is slow, or none; before: when the last one has ended."""
    word, asleep, learned = np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(LEARNED_WORDS, np.int64)
    learned[1] = before
    wait = partial(kernel("waiting.wait"), word.ctypes.data, 1, 0, 0, 1)
    assert wait(slow_yield, learned.ctypes.data, 0, 50_000_000, asleep.ctypes.data) == 1, "seen behind the first yield"
    assert (learned[2] > learned[1] > 0) == sleeps
    assert (learned[1] == before) == (slow_yield > 0)
    if sleeps:
        word[0], learned[2] = 0, NEVER
        noted = learned.tolist()
        assert wait(slow_yield, learned.ctypes.data, 0, 1_000_000, asleep.ctypes.data) == 0
        assert learned.tolist() == noted, "it has not yielded"


def last_of_all_is_late(seconds: float) -> None:
    """An all_reduce whose last rank comes late."""
    rank, size = unisono.get_rank(), unisono.get_world_size()
    x = torch.tensor([float(rank)])
    if rank == size - 1:
        time.sleep(seconds)  # the delay is what is tested
    unisono.all_reduce(x)
    assert x.item() == sum(range(size))


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(2, 3)
def test_long_wait_leaves_the_processor() -> None:
    unisono.barrier()
    cpu, begin = time.thread_time(), time.perf_counter()
    last_of_all_is_late(0.8)
    assert time.thread_time() - cpu < 0.5 * (time.perf_counter() - begin)


@pytest.mark.parametrize("ranks", [2, 4])
@in_new_world("ranks", config=Config(look_up_s=1000.0))
def test_write_wakes_the_sleeper(ranks: int) -> None:
    """All ranks but the last wait for it, longer than they spin or yield."""
    for _ in range(10):
        last_of_all_is_late(0.02)


@pytest.mark.sampled
@pytest.mark.parametrize("spins", [0, 1, 2000])
@pytest.mark.parametrize(("ranks", "calls"), [(2, examples(2000)), (4, examples(2000))])
@in_new_world("ranks")
def test_no_rank_waits_for_ever(ranks: int, calls: int, spins: int) -> None:
    """Small calls back to back, each rank now and then late by a time of its own. Odd ranks sleep, the others yield."""
    rank, words = unisono.get_rank(), unisono.init().engine.words
    words[StateWord.SPINS] = words[StateWord.LEARNED] = spins
    words[StateWord.LEARNED + 2] = NEVER if rank % 2 else 0
    draw, x = random.Random(7 + rank), torch.zeros(3)
    for number in range(calls):
        if draw.random() < 0.1:
            end = time.perf_counter() + draw.random() * 0.002
            while time.perf_counter() < end:
                pass
        x.copy_(torch.tensor([1.0, number, rank + number]))
        unisono.all_reduce(x)
        assert x.tolist() == [ranks, ranks * number, ranks * number + sum(range(ranks))]


@pytest.mark.parametrize("unwatched", ["early", "late"])
def test_memory_outlives_waits_that_read_it(unwatched: str) -> None:
    """Early: before a thread begins to wait. Then the poller keeps it no longer."""
    asleep, memory = np.zeros(1, np.int64), np.zeros(1, np.int64)
    poller, gone = Poller(1, most_spins=0, asleep=asleep.ctypes.data), weakref.ref(memory)
    poller.watch(0, (memory.ctypes.data, ZERO, memory))
    del memory
    thread = threading.Thread(target=poller.wait, args=(poller.wakeups, 0.0, 20.0))
    if unwatched == "early":
        poller.watch(0, None)
    thread.start()
    until(lambda: asleep[0])
    assert (gone() is None) == (unwatched == "early")
    poller.watch(0, None)
    assert (gone() is None) == (unwatched == "early")
    poller.wake()
    thread.join()
    poller.watch(0, None)
    assert gone() is None


@in_new_world(2, config=Config(look_up_s=1000.0))
def test_late_messages_wake_their_receivers() -> None:
    """To and fro, each side late in turn, so that the other sleeps; a sender also until there is room in its ring."""
    rank = unisono.get_rank()
    x = torch.zeros(100_001)
    for turn in range(20):
        if turn % 2 == rank:
            time.sleep(0.01)  # the delay is what is tested
            unisono.send(torch.full((100_001,), float(turn)), 1 - rank)
        else:
            unisono.recv(x, 1 - rank)
            assert x[-1] == turn


BOUND = """
import os, sys, unisono
every = sorted(os.sched_getaffinity(0))
own = every[int(os.environ["RANK"]) if "apart" in sys.argv else 0]
os.sched_setaffinity(0, {own})
group = unisono.init()
pair = unisono.new_group([0, 1])
print(group.engine.most_spins, pair.engine.most_spins, flush=True)
unisono.barrier()
"""


@pytest.mark.cold
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize(("how", "spins"), [("apart", Config().spins), ("together", 0)])
def test_ranks_bound_to_own_processors_spin(python: Python, how: str, spins: int) -> None:
    port = free_port()
    ranks = [python("-c", BOUND, how, **place(rank, 2, port)) for rank in range(2)]
    said = [rank.communicate(timeout=100) for rank in ranks]
    assert [out for out, _ in said] == [f"{spins} {spins}\n"] * 2, said
