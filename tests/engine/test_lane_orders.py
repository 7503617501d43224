"""The words that lanes share, in many orders of the steps of their threads.

The functions of `kernels.lanes` run here themselves, each in a thread. Before each step on a shared word a thread lets
the scene choose who goes on; a thread that spins lets the others go on. The scene tries all orders with few changes of
the thread where it could have gone on. The order of stores on weak processors is not tried here.
"""

import threading
from collections.abc import Callable
from typing import Any

from tests.support.weak_memory import LANES, OWN, PLAN, ROW, STATES, TARGET, Memory, as_python, explore, put_words
from unisono.engine.compile.program import DONE, LaneWord, PlanWord, RowWord, StateWord
from unisono.engine.kernels import lanes

PIECES, CHANGES, LONG_S = 2, 3, 30.0


class Threads(Memory):
    """Threads of which one runs at a time, on memory that keeps its order. choose: see `explore`.

    done: job and number of each piece that was moved, and the thread that has moved it.
    """

    def __init__(self, choose: Callable[[int], int]) -> None:
        super().__init__(choose)
        self._changes = CHANGES
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
        assert len(self.done) == 2 * PIECES

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
        """Note pieces: the row has the number of the job, the first address says where they begin."""
        self.step()
        job, first = self.read(row + 8 * RowWord.SUB), self.read(own) // 64
        self.done += [(job, first + k, self.now) for k in range(n // 8)]
        return DONE

    def function(self, of: Any) -> Any:
        """A function of `kernels.lanes`, with these steps."""
        short = {"_HELPER_SPINS": 2, "_SPINS": 1, "pause": self.spin, "sched_yield": self.spin}
        return as_python(of, self, **short, move=self.move, syscall=self.wake, futex_wait=self.sleep)


def share(threads: Threads, job: int) -> None:
    """Make a move of this number. Elements have 8 bytes, and pieces 8 elements."""
    plan, row, state, addresses = (base + (job << 10) for base in (PLAN, ROW, STATES, TARGET))
    put_words(threads, plan, {PlanWord.ITEM: 8, PlanWord.LANES: 2, PlanWord.LANE_BYTES: 64})
    put_words(threads, row, {RowWord.NIN: 1, RowWord.NOUT: 1, RowWord.SUB: job})
    put_words(threads, addresses, {0: 0, 1: 1 << 50})
    threads.words |= {state + 8 * StateWord.LANES: LANES, LANES + 8 * LaneWord.OWN: OWN}
    assert threads.function(lanes.move_by_lanes)(plan, row, 0, 8 * PIECES, addresses, state) == DONE
    assert sorted(piece for of, piece, _ in threads.done if of == job) == list(range(PIECES))


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


def test_each_piece_is_done_once_in_every_order() -> None:
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
