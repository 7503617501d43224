"""Wait until one of several words in shared memory changes."""

import ctypes
import itertools
import math

import numpy as np

from ..carrier import Carrier
from ..clock import slow_yield_cycles
from ..compile.program import LEARNED_WORDS
from ..kernels import kernel

Watched = tuple[int, int, object]
"""Two addresses, and what has their memory, if that can end."""

_zero = ctypes.c_int64()
ZERO = ctypes.addressof(_zero)
"""The address of a word that stays 0."""


class Poller:
    """`count` slots, each with two addresses. A slot is ready while the words at its addresses differ.

    Any number of threads may `wait`; all other methods are for one thread at a time.

    most_spins: see `waiting.wait`.
    asleep: the address of the word that tells writers that a thread sleeps.
    carrier: brings messages while a thread waits.
    wakeups: how often `wake` has been called.
    """

    def __init__(self, count: int, most_spins: int, asleep: int, carrier: Carrier | None = None) -> None:
        # The pairs of addresses, the slots that are ready, wakeups, and what `wait` learns.
        words = np.zeros(3 * count + 1 + LEARNED_WORDS, np.int64)
        self._words, self._count = words.data, count
        self._pairs = words.ctypes.data
        self._ready = self._pairs + 16 * count
        self._wakeups = self._ready + 8 * count
        self._spinning = most_spins, slow_yield_cycles(), self._wakeups + 8
        words[: 2 * count] = ZERO
        words[3 * count + 1] = most_spins
        self._poll, self._wait, self._carrier = kernel("waiting.poll"), kernel("waiting.wait"), carrier
        self._publish, self._asleep = kernel("waiting.publish_and_wake"), asleep
        kernel("waiting.register")()
        self.wakeups = 0
        self._memory: list[object] = [None] * count
        self._unwatched: list[tuple[int, object]] = []
        """A moment, and memory that was watched before: a thread that began to wait earlier may still read it."""
        self._moments = itertools.count()
        self._waiting: set[int] = set()
        """The moments at which the waiting threads began to wait."""

    def watch(self, slot: int, watched: Watched | None) -> None:
        """Let the slot be ready while the words at two addresses differ; None: never.

        The poller keeps what has their memory while a thread may read there.
        """
        first, second, memory = watched or (ZERO, ZERO, None)
        self._words[2 * slot], self._words[2 * slot + 1] = first, second
        before, self._memory[slot] = self._memory[slot], memory
        if before is not None and before is not memory:
            self._unwatched.append((next(self._moments), before))
        if self._unwatched:
            oldest = min(list(self._waiting), default=math.inf)
            self._unwatched = [(moment, kept) for moment, kept in self._unwatched if moment > oldest]

    def poll(self) -> list[int]:
        """The slots that are ready now."""
        found = self._poll(self._pairs, self._count, self._ready)
        slots: list[int] = self._words[2 * self._count : 2 * self._count + found].tolist() if found else []
        return slots

    def wake(self) -> None:
        self.wakeups += 1
        self._publish(self._wakeups, self.wakeups, self._asleep)

    def wait(self, counted: int, waited_s: float, limit_s: float) -> bool:
        """Wait until a slot is ready or another thread calls `wake`; False after limit_s seconds.

        counted: `wakeups`, as the caller has seen it.
        waited_s: how long the caller has waited already.
        """
        waited_ns, limit_ns = int(waited_s * 1e9), int(limit_s * 1e9)
        goal, began = (self._wakeups, counted + 1), next(self._moments)
        self._waiting.add(began)
        try:
            if self._carrier is not None:
                return bool(self._carrier.wait(*goal, self._pairs, self._count, waited_ns, limit_ns))
            return bool(self._wait(*goal, self._pairs, self._count, *self._spinning, waited_ns, limit_ns, self._asleep))
        finally:
            self._waiting.discard(began)
