"""How ranks wait for words in shared memory: they spin, yield and sleep."""

import ctypes
import os
import random
import resource
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import unisono
from tests.conftest import examples
from tests.support.ports import free_port
from tests.support.programs import Python, place
from tests.support.waiting import until
from tests.support.worlds import Worlds
from unisono.base.config import Config
from unisono.engine.clock import slow_yield_cycles
from unisono.engine.compile.program import AT_ONCE, IN_TIME, LEARNED_WORDS, WAITING, LineWord, StateWord
from unisono.engine.kernels import kernel
from unisono.engine.mailbox.poller import ZERO, Poller
from unisono.engine.memory import arena

NEVER = 1 << 62
ALWAYS_A_SLICE, NEVER_A_SLICE = 0, 1 << 50
"""What counts as a slow yield, in cycles: any yield then takes a time slice, or none does."""


class Waiter:
    """One wait for a word that changes only if it is set. learned: see LEARNED_WORDS."""

    def __init__(self, most_spins: int = 1) -> None:
        self.word, self.learned, self.most_spins = np.zeros(1, np.int64), np.zeros(LEARNED_WORDS, np.int64), most_spins
        self.learned[0], self.asleep = most_spins, np.zeros(1, np.int64)

    def wait(self, slow_yield: int, limit_ns: int) -> int:
        """How often the thread has slept meanwhile. A yield is no sleep."""
        learned = self.learned.ctypes.data
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        what = self.word.ctypes.data, 1, 0, 0
        asleep = self.asleep.ctypes.data
        result = kernel("waiting.wait")(*what, self.most_spins, slow_yield, learned, 0, limit_ns, asleep)
        assert result == self.word[0]
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_yields_that_take_no_slice_go_on() -> None:
    waiter = Waiter()
    waiter.wait(NEVER_A_SLICE, limit_ns=0)
    assert waiter.learned.tolist() == [1, 0, 0]


def test_two_slow_yields_make_a_rank_sleep() -> None:
    waiter = Waiter()
    waiter.learned[1] = NEVER  # the last one has only just ended
    assert waiter.wait(ALWAYS_A_SLICE, limit_ns=50_000_000) > 0  # the yields may take slices indeed
    _, ended, sleep_until = waiter.learned.tolist()
    assert sleep_until > ended > 0
    waiter.learned[2] = NEVER
    assert waiter.wait(NEVER_A_SLICE, limit_ns=50_000_000) > 0
    assert waiter.learned.tolist() == [1, ended, NEVER]  # it has not yielded


def test_one_slow_yield_is_ignored() -> None:
    waiter = Waiter()
    waiter.word[0] = 1  # seen only behind the first yield, as nobody spins
    waiter.learned[0] = 0
    waiter.wait(ALWAYS_A_SLICE, limit_ns=0)
    _, ended, sleep_until = waiter.learned.tolist()
    assert ended > 0
    assert sleep_until == 0


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


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("ranks", [2, 3])
def test_long_wait_leaves_the_processor(worlds: Worlds, ranks: int) -> None:
    for cpu, wall in worlds(ranks).run(wait_for_the_last, 0.8):
        assert cpu < 0.5 * wall


def count_looks(seconds: float) -> int:
    """How often this rank looks at its peers while the last rank is late by so many seconds."""
    from unisono.ranks.failures.attend import Watch

    looks, look = [0], Watch.look

    def counted(watch: Watch, waiting_for: int, waited_s: float, allowed_s: float) -> None:
        looks[0] += 1
        look(watch, waiting_for, waited_s, allowed_s)

    unisono.barrier()
    Watch.look = counted
    if unisono.get_rank():
        time.sleep(seconds)  # the delay is what is tested
    unisono.barrier()
    return looks[0]


def test_long_wait_looks_at_peers_less_often() -> None:
    with unisono.World(2, timeout_s=60, config=unisono.Config(look_up_s=0.002)) as world:
        looks = world.run(count_looks, 1.0)[0]
    assert 10 < looks < 300  # of 500 looks every 2 ms; each of them lasts


def hurried(seed: int, calls: int, spins: int) -> list[float]:
    """Small calls back to back, each rank now and then late by a time of its own. Odd ranks sleep, the others yield."""
    group = unisono.init()
    state = group.engine._state
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
    calls = examples(2000)
    expected = [v for n in range(calls) for v in (ranks, ranks * n, ranks * n + sum(range(ranks)))]
    seen = unisono.run(hurried, ranks, (7, calls, spins), timeout_s=60)
    assert all(each == expected for each in seen)


def asleep_early(when: int) -> bool:
    """Whether rank 0 says that it sleeps, when it has waited for 50 µs for rank 1. when: see `StateWord.SLEEPS`."""
    group, x = unisono.init(), torch.ones(37)
    unisono.all_reduce(x)
    if group.rank:
        unisono.recv(x.clone(), 0)
        unisono.all_reduce(x)
        return False
    plan = next(plan for plan in group.plans.values() if plan.nbytes == x.nbytes)
    words, says = group.engine.words, group.engine.arena.control(1)
    usual, words[StateWord.SLEEPS], words[StateWord.LOOK_UP_NS] = words[StateWord.LOOK_UP_NS], when, 50_000
    asleep = False
    for _ in range(1 if when == IN_TIME else 100):  # the system may keep the rank from its processor for these 50 µs
        words[StateWord.WAITED_NS] = 0
        assert group.run(plan.address, x.data_ptr(), x.data_ptr(), group.state) == WAITING | 1 << 8
        asleep = asleep or ctypes.c_int32.from_address(says + 8 * LineWord.ASLEEP).value == 1
    words[StateWord.SLEEPS], words[StateWord.LOOK_UP_NS] = IN_TIME, usual
    unisono.send(x, 1)
    while group.run(plan.address, x.data_ptr(), x.data_ptr(), group.state):
        pass
    return asleep


def test_rank_sleeps_at_once_only_by_its_state(worlds: Worlds) -> None:
    assert [worlds(2).run(asleep_early, when)[0] for when in (IN_TIME, AT_ONCE)] == [False, True]


def yields_on_one_processor(times: int) -> list[int]:
    """What this rank takes for a slow yield, measured while all ranks measure on one processor."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    unisono.barrier()
    return [slow_yield_cycles.__wrapped__() for _ in range(times)]


def test_slow_yield_on_a_shared_processor() -> None:
    """Else no yield counts as slow, and a rank spins while the rank that it waits for needs its processor."""
    alone = min(slow_yield_cycles.__wrapped__() for _ in range(20))
    one, two = unisono.run(yields_on_one_processor, 2, (20,), timeout_s=60)
    assert sorted(one + two)[20] < 3 * alone


def poller_of(slots: int) -> Poller:
    return Poller(slots, most_spins=0, asleep=_asleep.ctypes.data)


_asleep = np.zeros(1, np.int64)


def test_unwatched_memory_outlives_a_wait() -> None:
    poller, memory = poller_of(1), np.zeros(1, np.int64)
    gone = weakref.ref(memory)
    poller.watch(0, (memory.ctypes.data, ZERO, memory))
    thread = threading.Thread(target=poller.wait, args=(poller.wakeups, 0.0, 20.0))
    thread.start()
    until(lambda: bool(poller._waiting))
    del memory
    poller.watch(0, None)
    assert gone() is not None
    poller.wake()
    thread.join()
    poller.watch(0, None)
    assert gone() is None


def test_later_wait_does_not_keep_memory() -> None:
    poller, memory = poller_of(2), [np.zeros(1, np.int64) for _ in range(2)]
    gone = [weakref.ref(one) for one in memory]
    for slot in (0, 1):
        poller.watch(slot, (memory[slot].ctypes.data, ZERO, memory[slot]))
    poller.watch(0, None)
    thread = threading.Thread(target=poller.wait, args=(poller.wakeups, 0.0, 20.0))
    thread.start()
    until(lambda: bool(poller._waiting))
    memory.clear()
    poller.watch(1, None)
    assert [ref() is None for ref in gone] == [True, False]
    poller.wake()
    thread.join()


def ends_a_wait(late_s: float) -> float:
    """All ranks but the last wait for it, longer than they spin or yield; how long this rank was in the call."""
    rank, size = unisono.get_rank(), unisono.get_world_size()
    state = unisono.init().engine._state
    state[StateWord.LOOK_UP_NS] = 60 * 10**9  # the kernel does not return to look: only a wake-up ends its sleep
    x, began = torch.tensor([float(rank)]), time.perf_counter()
    if rank == size - 1:
        time.sleep(late_s)  # the delay is what is tested
    unisono.all_reduce(x)
    took = time.perf_counter() - began
    state[StateWord.LOOK_UP_NS] = 20 * 10**6
    assert x.item() == sum(range(size))
    return took


@pytest.mark.parametrize("ranks", [2, 4])
def test_write_wakes_the_sleeper(worlds: Worlds, ranks: int) -> None:
    def work() -> list[float]:
        return [ends_a_wait(0.02) for _ in range(10)]

    for took in worlds(ranks).run(work):
        assert max(took) < 10


def messages_at_a_distance(late_s: float, turns: int) -> float:
    """A message to and fro, each side late in turn, so that the other sleeps."""
    group = unisono.init()
    rank, peer = group.rank, 1 - group.rank
    began, x = time.perf_counter(), torch.zeros(100_001)
    for turn in range(turns):
        if turn % 2 == rank:
            time.sleep(late_s)  # the delay is what is tested
            unisono.send(torch.full((100_001,), float(turn)), peer)
        else:
            unisono.recv(x, peer)
            assert x[-1] == turn
    return time.perf_counter() - began


def test_late_messages_wake_their_receivers() -> None:
    """Also those that do not fit into a ring: then the sender sleeps until there is room."""
    with unisono.World(2, config=unisono.Config(look_up_s=30.0), timeout_s=60) as world:
        assert max(world.run(messages_at_a_distance, 0.01, 20)) < 25


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


@pytest.mark.parametrize(
    ("quota_us", "spins", "chosen"), [(200_000, 0, "one_shot"), (400_000, Config().spins, "two_shot")]
)
def test_ranks_share_the_time_of_their_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota_us: int, spins: int, chosen: str
) -> None:
    """Four ranks in a container that may use the time of 2, or 4, of 64 processors."""

    def work() -> tuple[int, str]:
        unisono.all_reduce(torch.ones(4096))
        group = unisono.init()
        (plan,) = group.plans.values()
        return group.engine.most_spins, plan.program.name  # type: ignore[attr-defined]

    for path, text in {
        "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw,relatime 0 0\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": f"{quota_us} 100000\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(64)})
    monkeypatch.setattr(arena, "processors", partial(arena.processors, root=tmp_path))
    with unisono.world(4, config=Config(), timeout_s=60) as world:
        assert world.run(work) == [(spins, f"all_reduce.{chosen}")] * 4
