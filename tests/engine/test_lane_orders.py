"""The words that lanes share, in many orders of the steps of their threads.

The functions of `kernels.lanes` run here themselves, each in a thread. Before each step on a shared word a thread lets
the scene choose who goes on; a thread that spins lets the others go on. The scene tries all orders with few changes of
the thread where it could have gone on. The order of stores on weak processors is not tried here.
"""

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tests.support.weak_memory import explore
from unisono.engine.compile.program import DONE, LaneWord, PlanWord, RowWord, StateWord
from unisono.engine.kernels import lanes

LANES, PLAN, ROW, STATE, ADDRESSES, OWN = (n << 20 for n in range(1, 7))
PIECES, CHANGES = 2, 3
LONG_S = 30.0
_STEPS = ("add", "swap", "load_acquire", "store_release")


class Threads:
    """Threads of which one runs at a time. choose: see `explore`."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        self._choose, self._changes = choose, CHANGES
        self._locks: dict[str, threading.Semaphore] = {}
        self._asleep: dict[str, int] = {}
        self.memory: dict[int, int] = {}
        self.done: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
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
                self.errors.append(error)
            del self._locks[name]
            if self._awake():
                self._go_on(self._awake()[0])
            else:
                self._ended.set()

        threads = [threading.Thread(target=whole, args=item, daemon=True) for item in bodies.items()]
        for thread in threads:
            thread.start()
        self._go_on(next(iter(bodies)))
        assert self._ended.wait(LONG_S)
        assert not self._asleep, f"{self._asleep} sleep for ever"
        for thread in threads:
            thread.join(LONG_S)

    def _awake(self) -> list[str]:
        return [name for name in self._locks if name not in self._asleep]

    def _go_on(self, name: str) -> None:
        self.now = name
        self._locks[name].release()

    def _pass_to(self, name: str, me: str) -> None:
        mine = self._locks[me]
        self._go_on(name)
        assert mine.acquire(timeout=LONG_S)

    def step(self) -> None:
        """A thread may change here."""
        me, others = self.now, [name for name in self._awake() if name != self.now]
        if self._changes and others and (chosen := self._choose(1 + len(others))):
            self._changes -= 1
            self._pass_to(others[chosen - 1], me)

    def spin(self) -> None:
        """The thread cannot go on until another one has."""
        me, awake = self.now, self._awake()
        if len(awake) > 1:
            self._pass_to(awake[(awake.index(me) + 1) % len(awake)], me)

    def sleep(self, _: int, address: int, expected: int, __: int) -> None:
        self.step()
        if self.memory.get(address - 4, 0) >> 32 != expected:
            return
        me = self.now
        self._asleep[me] = expected
        if self._awake():
            self._pass_to(self._awake()[0], me)
        else:
            self._ended.set()
            raise SystemExit

    def check_sleepers(self) -> None:
        """No thread has slept through the present job."""
        job = self.memory[LANES + 8 * LaneWord.JOB] >> 32
        assert all(seen == job for seen in self._asleep.values())

    def wake(self, *_: int) -> int:
        self.step()
        self._asleep.clear()
        return 0

    # The steps
    def add(self, address: int, value: int) -> int:
        self.step()
        before = self.memory.get(address, 0)
        self.memory[address] = before + value
        return before

    def swap(self, address: int, value: int) -> int:
        self.step()
        before, self.memory[address] = self.memory.get(address, 0), value
        return before

    def load_acquire(self, address: int) -> int:
        self.step()
        return self.memory.get(address, 0)

    def store_release(self, address: int, value: int) -> None:
        self.step()
        self.memory[address] = value

    def move(self, _: int, row: int, __: int, n: int, own: int, *___: int) -> int:
        """Note pieces: the row has the number of the job, the first address says where they begin."""
        self.step()
        first = self.memory.get(own, 0) // 64
        self.done += [(self.memory[row + 8 * RowWord.SUB], first + k) for k in range(n // 8)]
        return DONE

    def function(self, name: str) -> Any:
        """A function of `kernels.lanes`, with these steps."""
        names: dict[str, Any] = {
            **vars(lanes), "move": self.move, "syscall": self.wake, "futex_wait": self.sleep,
            "pause": self.spin, "sched_yield": self.spin,
            "load": lambda at: self.memory.get(at, 0),
            "store": self.memory.__setitem__, "get": lambda base, word: self.memory.get(base + 8 * word, 0),
            "put": lambda base, word, value: self.memory.__setitem__(base + 8 * word, value),
            "_HELPER_SPINS": 2, "_SPINS": 1, **{step: getattr(self, step) for step in _STEPS},
        }  # fmt: skip
        for inner in ("_piece", "_take", "move_by_lanes", "help_lanes", "end"):
            names[inner] = FunctionType(getattr(lanes, inner).py_func.__code__, names)
        return names[name]


def share(threads: Threads, job: int) -> int:
    """Make a move of this number. Elements have 8 bytes, and pieces 8 elements."""
    plan, row, state = PLAN + (job << 10), ROW + (job << 10), STATE + (job << 10)
    addresses = ADDRESSES + (job << 10)
    words = {
        plan + 8 * PlanWord.ITEM: 8, plan + 8 * PlanWord.LANES: 2, plan + 8 * PlanWord.LANE_BYTES: 64,
        row + 8 * RowWord.NIN: 1, row + 8 * RowWord.NOUT: 1, row + 8 * RowWord.SUB: job,
        state + 8 * StateWord.LANES: LANES, LANES + 8 * LaneWord.OWN: OWN, addresses: 0, addresses + 8: 1 << 40,
    }  # fmt: skip
    threads.memory.update(words)
    status: int = threads.function("move_by_lanes")(plan, row, 0, 8 * PIECES, addresses, state)
    assert sorted(piece for of, piece in threads.done if of == job) == list(range(PIECES))
    return status


def two_jobs(choose: Callable[[int], int]) -> set[str]:
    """Two moves one after the other, with a helper, which ends. Which threads have done pieces?"""
    threads = Threads(choose)
    by: set[str] = set()
    move = threads.move

    def noted(*args: int) -> int:
        by.add(threads.now)
        return move(*args)

    threads.move = noted  # type: ignore[method-assign]

    def calls() -> None:
        for job in (1, 2):
            assert share(threads, job) == DONE
            threads.check_sleepers()
        threads.function("end")(LANES)

    threads.run({"caller": calls, "helper": lambda: threads.function("help_lanes")(LANES, OWN + 4096, 0)})
    if threads.errors:
        raise threads.errors[0]
    assert len(threads.done) == 2 * PIECES
    assert threads.memory[LANES + 8 * LaneWord.BUSY] == 0
    assert threads.memory.get(LANES + 8 * LaneWord.SLEEPERS, 0) == 0
    return by


def test_each_piece_is_done_once_in_every_order() -> None:
    runs = list(explore(two_jobs))
    assert len(runs) > 1000
    assert {"caller"} in runs
    assert {"caller", "helper"} in runs


def two_callers(choose: Callable[[int], int]) -> int:
    """A move each of two threads, without a helper. How many moves were shared?"""
    threads = Threads(choose)
    threads.run({"one": lambda: share(threads, 1), "other": lambda: share(threads, 2)})
    if threads.errors:
        raise threads.errors[0]
    assert len(threads.done) == 2 * PIECES
    return threads.memory.get(LANES + 8 * LaneWord.DUE, 0) // PIECES


def test_two_calls_do_not_share_moves_at_once() -> None:
    assert set(explore(two_callers)) == {1, 2}
