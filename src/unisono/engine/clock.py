"""The processor's cycle counter, by which calls are logged and yields are timed, and the system's clock."""

import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from .kernels import kernel


class Clock(NamedTuple):
    """One moment by both clocks: the processor's cycles, and the monotonic nanoseconds of the system."""

    cycles: int
    ns: int

    @classmethod
    def now(cls) -> "Clock":
        """This moment."""
        before = time.monotonic_ns()
        cycles = read_cycles()
        return cls(cycles, (before + time.monotonic_ns()) // 2)

    def ns_at(self, cycles: int, later: "Clock") -> int:
        """The moment when the counter was at `cycles`. later: another moment, which gives the rate."""
        passed = later.cycles - self.cycles
        return self.ns + (cycles - self.cycles) * (later.ns - self.ns) // passed if passed else self.ns


@cache
def _counter() -> Callable[..., int]:
    return kernel("waiting.read_cycles")


def read_cycles() -> int:
    """The processor's cycle counter, which all processors of a host share."""
    return _counter()()


@cache
def slow_yield_cycles() -> int:
    """A sched_yield that takes longer has let another process run. In cycles, measured once per process.

    A yield that finds no other process takes 1.6 times as long as a wake of no thread. Yields are not measured: where a
    process runs on the same processor meanwhile, each of them lets it run.
    """
    word = np.zeros(1, np.int64)
    cycles: int = kernel("waiting.time_wakes")(word.ctypes.data)
    return cycles
