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
from tests.support.on_ranks import in_new_world
from tests.support.ports import free_port
from tests.support.programs import Python, place
from tests.support.waiting import until
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


@pytest.mark.ranks(2, 4)
def test_write_wakes_the_sleeper() -> None:
    """All ranks but the last wait for it, longer than they spin or yield."""
    words = unisono.init().engine.words
    usual, words[StateWord.LOOK_UP_NS] = words[StateWord.LOOK_UP_NS], 60 * 10**9  # only a wake-up ends their sleep
    for _ in range(10):
        began = time.perf_counter()
        last_of_all_is_late(0.02)
        assert time.perf_counter() - began < 10
    words[StateWord.LOOK_UP_NS] = usual


@in_new_world(2, config=Config(look_up_s=0.002))
def test_long_wait_looks_at_peers_less_often() -> None:
    from unisono.ranks.failures.attend import Watch

    looks, look = [0], Watch.look

    def counted(watch: Watch, waiting_for: int, waited_s: float, allowed_s: float) -> None:
        looks[0] += 1
        look(watch, waiting_for, waited_s, allowed_s)

    unisono.barrier()
    Watch.look = counted  # type: ignore[method-assign]
    if unisono.get_rank():
        time.sleep(1.0)  # the delay is what is tested
    unisono.barrier()
    assert unisono.get_rank() or 10 < looks[0] < 300  # of 500 looks every 2 ms; each of them lasts


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


@pytest.mark.ranks(2)
def test_rank_sleeps_at_once_only_by_its_state() -> None:
    """How often rank 0 says that it sleeps, when it has waited for 50 µs for rank 1. See `StateWord.SLEEPS`."""
    group, x = unisono.init(), torch.ones(37)
    unisono.all_reduce(x)
    if group.rank:
        unisono.recv(x.clone(), 0)
        unisono.all_reduce(x)
        return
    plan = next(plan for plan in group.plans.values() if plan.nbytes == x.nbytes)
    words, asleep = group.engine.words, group.engine.arena.control(1) + 8 * LineWord.ASLEEP
    usual = {word: words[word] for word in (StateWord.LOOK_UP_NS, StateWord.SPINS, StateWord.LEARNED)}
    words[StateWord.LOOK_UP_NS], words[StateWord.SPINS], sleeps = 50_000, Config().spins, {IN_TIME: 0, AT_ONCE: 0}
    for when in [IN_TIME] * 100 + [AT_ONCE] * 100:  # the system may keep the rank from its processor for longer
        words[StateWord.SLEEPS], words[StateWord.WAITED_NS] = when, 0
        words[StateWord.LEARNED], words[StateWord.LEARNED + 2] = Config().spins, 0
        ctypes.c_int32.from_address(asleep).value = 0
        assert group.run(plan.address, x.data_ptr(), x.data_ptr(), group.state) == WAITING | 1 << 8
        sleeps[when] += ctypes.c_int32.from_address(asleep).value
    for word, value in {**usual, StateWord.SLEEPS: IN_TIME}.items():
        words[word] = value
    unisono.send(x, 1)
    while group.run(plan.address, x.data_ptr(), x.data_ptr(), group.state):
        pass
    assert sleeps[IN_TIME] < 50
    assert sleeps[AT_ONCE]


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


@in_new_world(2, config=Config(look_up_s=30.0))
def test_late_messages_wake_their_receivers() -> None:
    """To and fro, each side late in turn, so that the other sleeps; a sender also until there is room in its ring."""
    rank = unisono.get_rank()
    began, x = time.perf_counter(), torch.zeros(100_001)
    for turn in range(20):
        if turn % 2 == rank:
            time.sleep(0.01)  # the delay is what is tested
            unisono.send(torch.full((100_001,), float(turn)), 1 - rank)
        else:
            unisono.recv(x, 1 - rank)
            assert x[-1] == turn
    assert time.perf_counter() - began < 25


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
