"""Lanes: threads of a rank that share a long move. The words that they share, in many orders of their steps.

The functions of `kernels.lanes` run here themselves, each in a thread. Before each step on a shared word a thread lets
the scene choose who goes on; a thread that spins lets the others go on. The scene tries all orders with few changes of
the thread where it could have gone on. The order of stores on weak processors is not tried here.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

import unisono
from tests.support.lanes import with_lanes
from tests.support.on_ranks import in_new_world
from tests.support.weak_memory import LANES, OUT, OWN, PLAN, ROW, STATES, TARGET, Memory, as_python, explore, put_words
from unisono.calls.dispatch import planning
from unisono.engine.compile.program import DONE, FAILED, LaneWord, PlanWord, RowWord, StateWord
from unisono.engine.kernels import lanes

PIECES, ELEMENTS, CHANGES, LONG_S = 2, 13, 3, 30.0


class Threads(Memory):
    """Threads of which one runs at a time, on memory that keeps its order. choose: see `explore`.

    done: job and number of each element that was moved, and the thread that has moved it.
    """

    def __init__(self, choose: Callable[[int], int], changes: int = CHANGES) -> None:
        super().__init__(choose)
        self._changes = changes
        self._locks: dict[str, threading.Semaphore] = {}
        self._asleep: dict[str, int] = {}
        self._errors: list[BaseException] = []
        self.words: dict[int, int] = {}
        self.done: list[tuple[int, int, str]] = []
        self.now = ""

    def run(self, bodies: dict[str, Callable[[], object]]) -> None:
        """Run these to their ends."""
        self._ended = threading.Event()
        self._locks = {name: threading.Semaphore(0) for name in bodies}

        def whole(name: str, body: Callable[[], object]) -> None:
            self._locks[name].acquire()
            try:
                body()
            except BaseException as error:  # noqa: BLE001  told below
                self._errors.append(error)
            del self._locks[name]
            self._go_on(self._awake()[:1])

        threads = [threading.Thread(target=whole, args=item, daemon=True) for item in bodies.items()]
        for thread in threads:
            thread.start()
        self._go_on([*bodies])
        assert self._ended.wait(LONG_S)
        assert not self._asleep, f"{self._asleep} sleep for ever"
        for thread in threads:
            thread.join(LONG_S)
        for error in self._errors:
            raise error
        assert len(self.done) == ELEMENTS * len({job for job, *_ in self.done})

    def _awake(self) -> list[str]:
        return [name for name in self._locks if name not in self._asleep]

    def _go_on(self, names: list[str]) -> None:
        """Let the first of these go on; without any, all is over."""
        if not names:
            self._ended.set()
            return
        self.now = names[0]
        self._locks[self.now].release()

    def _pass_to(self, names: list[str]) -> None:
        mine = self._locks[self.now]
        self._go_on(names)
        if not names:
            raise SystemExit
        assert mine.acquire(timeout=LONG_S)

    def step(self) -> None:
        """A thread may change here."""
        others = [name for name in self._awake() if name != self.now]
        if self._changes and others and (chosen := self.choose(1 + len(others))):
            self._changes -= 1
            self._pass_to(others[chosen - 1 :])

    def spin(self) -> None:
        """The thread cannot go on until another one has."""
        awake = self._awake()
        if len(awake) > 1:
            self._pass_to([awake[(awake.index(self.now) + 1) % len(awake)]])

    def sleep(self, _: int, address: int, expected: int, __: int) -> None:
        self.step()
        if self.read(address - 4) >> 32 == expected:
            self._asleep[self.now] = expected
            self._pass_to(self._awake())

    def wake(self, *_: int) -> int:
        self.step()
        self._asleep.clear()
        return 0

    def check_sleepers(self) -> None:
        """No thread has slept through the present job."""
        job = self.read(LANES + 8 * LaneWord.JOB) >> 32
        assert all(seen == job for seen in self._asleep.values())

    def read(self, at: int) -> int:
        return self.words.get(at, 0)

    def write(self, at: int, value: int) -> None:
        self.words[at] = value

    def acquire(self, at: int) -> int:
        self.step()
        return self.read(at)

    def release(self, at: int, value: int) -> None:
        self.step()
        self.write(at, value)

    def change(self, at: int, value_of: Callable[[int], int], _: str) -> int:
        self.step()
        before = self.read(at)
        self.write(at, value_of(before))
        return before

    def move(self, _: int, row: int, __: int, n: int, own: int, *___: int) -> int:
        """Note elements: the row has the number of the job, the addresses say where they begin. One of job 1 fails."""
        self.step()
        job, first = self.read(row + 8 * RowWord.SUB), self.read(own) // 8
        assert self.read(own + 8) == OUT + 8 * first
        self.done += [(job, first + k, self.now) for k in range(n)]
        return FAILED if job == 1 and first + n == ELEMENTS else DONE

    def function(self, of: Any) -> Any:
        """A function of `kernels.lanes`, with these steps."""
        short = {"_HELPER_SPINS": 2, "_SPINS": 1, "pause": self.spin, "sched_yield": self.spin}
        return as_python(of, self, **short, move=self.move, syscall=self.wake, futex_wait=self.sleep)


def share(threads: Threads, job: int) -> None:
    """Make a move of this number, in pieces of 8 elements of 8 bytes."""
    plan, row, state, addresses = (base + (job << 10) for base in (PLAN, ROW, STATES, TARGET))
    put_words(threads, plan, {PlanWord.ITEM: 8, PlanWord.LANES: 2, PlanWord.LANE_BYTES: 52})
    put_words(threads, row, {RowWord.NIN: 1, RowWord.NOUT: 1, RowWord.SUB: job})
    put_words(threads, addresses, {0: 0, 1: OUT})
    threads.words |= {state + 8 * StateWord.LANES: LANES, LANES + 8 * LaneWord.OWN: OWN}
    status = threads.function(lanes.move_by_lanes)(plan, row, 0, ELEMENTS, addresses, state)
    assert status == (FAILED if job == 1 else DONE)
    assert sorted(element for of, element, _ in threads.done if of == job) == list(range(ELEMENTS))


def two_jobs(choose: Callable[[int], int]) -> set[str]:
    """Two moves one after the other, with a helper, which ends. Which threads have done pieces?"""
    threads = Threads(choose)

    def calls() -> None:
        for job in (1, 2):
            share(threads, job)
            threads.check_sleepers()
        threads.function(lanes.end)(LANES)

    threads.run({"caller": calls, "helper": lambda: threads.function(lanes.help_lanes)(LANES, OWN + 4096, 0)})
    assert [threads.read(LANES + 8 * word) for word in (LaneWord.BUSY, LaneWord.SLEEPERS)] == [0, 0]
    return {who for *_, who in threads.done}


def test_each_element_is_moved_once_in_any_order() -> None:
    runs = list(explore(two_jobs))
    assert len(runs) > 1000
    assert {"caller"} in runs
    assert {"caller", "helper"} in runs


def two_callers(choose: Callable[[int], int]) -> int:
    """A move each of two threads, without a helper. How many moves were shared?"""
    threads = Threads(choose)
    threads.run({"one": lambda: share(threads, 1), "other": lambda: share(threads, 2)})
    return threads.read(LANES + 8 * LaneWord.DUE) // PIECES


def test_two_calls_do_not_share_moves_at_once() -> None:
    assert set(explore(two_callers)) == {1, 2}


def ends_early(choose: Callable[[int], int]) -> set[str]:
    """A move while the helpers are ended. Which threads have done pieces?"""
    threads = Threads(choose, changes=2)
    threads.run({
        "caller": lambda: share(threads, 2),
        "helper": lambda: threads.function(lanes.help_lanes)(LANES, OWN + 4096, 0),
        "ending": lambda: threads.function(lanes.end)(LANES),
    })  # fmt: skip
    return {who for *_, who in threads.done}


def test_ending_helper_leaves_its_pieces() -> None:
    assert {"caller"} in (runs := list(explore(ends_early)))
    assert {"caller", "helper"} in runs


HELPER = "unisono-helper"


@in_new_world(2)
def test_helpers_take_pieces() -> None:
    """A helper that finds no work would use less than a thousandth of this time in a second."""
    with_lanes(2)
    tensor, all_have_worked = torch.ones(1 << 20), torch.zeros(1)
    unisono.all_reduce(tensor)
    helper = next(thread for thread in threading.enumerate() if thread.name == HELPER)
    clock = time.pthread_getcpuclockid(helper.ident or 0)
    while not all_have_worked:
        unisono.all_reduce(tensor)
        all_have_worked[0] = time.clock_gettime(clock) > 0.05
        unisono.all_reduce(all_have_worked, "min")


@in_new_world(3, all_give=([HELPER] * 2, []))
def test_helpers_end_with_their_world() -> tuple[list[str], list[str]]:
    """Neither an abort nor a shrink ends them, or starts others."""

    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == HELPER]

    with_lanes(3)
    world, numbers = unisono.init(), torch.arange(100_003) % 31
    tensor = unisono.empty(100_003, dtype=torch.bfloat16).copy_(numbers + world.rank)
    unisono.all_reduce(tensor)
    if world.rank == 1:
        world.abort("for this test")
    with suppress(unisono.PeerFailed):
        unisono.all_reduce(tensor)
    smaller = world.shrink()
    smaller.engine.config = smaller.engine.config.replace(lanes=3)
    unisono.all_reduce(tensor.copy_(numbers + world.rank), group=smaller)
    assert torch.equal(tensor, (3 * numbers + 3).to(torch.bfloat16))
    during = names()
    world.close()
    return during, names()


@pytest.mark.parametrize(("own", "lanes"), [(2, 1), (4, 2), (64, 3)])
@in_new_world(2)
def test_long_calls_have_lanes_by_default(own: int, lanes: int) -> None:
    """Where there are processors."""
    planning.processors, unisono.init().engine.arena.processors = lambda: own, own  # type: ignore[assignment, attr-defined]
    torch.set_num_threads(3)
    for nbytes, expected in ((8 << 20, 1), ((8 << 20) + 4, lanes)):
        tensor = torch.ones(nbytes // 4)
        unisono.all_reduce(tensor)
        plan: Any = list(unisono.init().plans.values())[-1]
        helpers = sum(thread.name == HELPER for thread in threading.enumerate())
        assert (plan.words[PlanWord.LANES], helpers, tensor.sum()) == (expected, expected - 1, nbytes // 2)
