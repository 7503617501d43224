"""How a rank waits: when it yields, when it naps, what it costs, and that it always goes on."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

import unisono
from unisono.engine.compile.program import LEARNED_WORDS, StateWord
from unisono.engine.kernels import kernel

Worlds = Callable[[int], unisono.World]
NEVER = 1 << 62
ALWAYS_A_SLICE, NEVER_A_SLICE = 0, 1 << 50
"""What counts as a slow yield, in cycles: any yield then takes a time slice, or none does."""


class Waiter:
    """One wait for a word that changes only if it is set. learned: see LEARNED_WORDS."""

    def __init__(self, most_spins: int = 0) -> None:
        self.word, self.learned, self.most_spins = np.zeros(1, np.int64), np.zeros(LEARNED_WORDS, np.int64), most_spins
        self.learned[0] = most_spins

    def wait(self, slow_yield: int, limit_ns: int) -> int:
        """How often the thread has slept meanwhile. A yield is no sleep."""
        learned = self.learned.ctypes.data
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        what = self.word.ctypes.data, 1, 0, 0
        result = kernel("waiting.wait")(*what, self.most_spins, slow_yield, learned, 0, limit_ns, 0)
        assert result == self.word[0]
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_yields_that_take_no_slice_go_on() -> None:
    waiter = Waiter()
    waiter.wait(NEVER_A_SLICE, limit_ns=0)
    assert waiter.learned.tolist() == [0, 0, 0]


def test_after_two_yields_of_a_slice_each_a_rank_naps_in_this_wait_and_the_next() -> None:
    waiter = Waiter()
    assert waiter.wait(ALWAYS_A_SLICE, limit_ns=50_000_000) > 0  # the yields may take slices indeed
    _, slices, nap_until = waiter.learned.tolist()
    assert slices == 2
    assert nap_until > 0
    waiter.learned[2] = NEVER
    assert waiter.wait(NEVER_A_SLICE, limit_ns=500_000) > 0
    assert waiter.learned.tolist() == [0, 2, NEVER]  # it has not yielded


def test_one_yield_of_a_slice_is_chance() -> None:
    waiter = Waiter()
    waiter.word[0] = 1  # seen only behind the first yield, as nobody spins
    waiter.wait(ALWAYS_A_SLICE, limit_ns=0)
    assert waiter.learned.tolist() == [0, 1, 0]
    waiter.wait(NEVER_A_SLICE, limit_ns=0)
    assert waiter.learned.tolist() == [0, 0, 0]


def test_where_naps_are_long_spins_become_few_but_not_none() -> None:
    waiter = Waiter(most_spins=2000)
    waiter.learned[2] = NEVER
    spins = []
    for _ in range(6):
        waiter.wait(NEVER_A_SLICE, limit_ns=500_000)
        spins.append(int(waiter.learned[0]))
    assert spins == [1000, 500, 250, 125, 100, 100]


def test_naps_leave_the_slack_of_timers_alone() -> None:
    def slack() -> str:
        with open("/proc/self/timerslack_ns") as file:
            return file.read()

    before = slack()
    waiter = Waiter()
    waiter.learned[2] = NEVER
    waiter.wait(NEVER_A_SLICE, limit_ns=100_000)
    assert slack() == before


def wait_for_the_last(seconds: float) -> tuple[float, float]:
    """Processor time and time of an all_reduce whose last rank comes late, on this rank."""
    rank, size = unisono.get_rank(), unisono.get_world_size()
    x = torch.tensor([float(rank)])
    unisono.barrier()
    cpu, begin = time.thread_time(), time.perf_counter()
    if rank == size - 1:
        time.sleep(seconds)  # the delay is what is tested
    unisono.all_reduce(x)
    assert x.item() == sum(range(size))
    return time.thread_time() - cpu, time.perf_counter() - begin


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_waits_long_leaves_the_processor_to_others(worlds: Worlds, ranks: int) -> None:
    for cpu, wall in worlds(ranks).run(wait_for_the_last, 0.8):
        assert cpu < 0.5 * wall


def hurried(seed: int, calls: int, spins: int) -> list[float]:
    """Small calls back to back, each rank now and then late by a time of its own. Odd ranks nap, the others yield."""
    group = unisono.init()
    state = group.host._state
    state[StateWord.SPINS] = state[StateWord.LEARNED] = spins
    state[StateWord.LEARNED + 2] = NEVER if group.rank % 2 else 0
    draw, x, results = random.Random(seed + group.rank), torch.zeros(3), []
    for number in range(calls):
        if draw.random() < 0.1:
            until = time.perf_counter() + draw.random() * 0.002
            while time.perf_counter() < until:
                pass
        x.copy_(torch.tensor([1.0, number, group.rank + number]))
        unisono.all_reduce(x)
        results += x.tolist()
    return results


@pytest.mark.sampled
@pytest.mark.parametrize("spins", [0, 1, 2000])
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_rank_waits_for_ever(ranks: int, spins: int) -> None:
    calls = 1000
    expected = [v for n in range(calls) for v in (ranks, ranks * n, ranks * n + sum(range(ranks)))]
    seen = unisono.run(hurried, ranks, (7, calls, spins), timeout_s=60)
    assert all(each == expected for each in seen)
