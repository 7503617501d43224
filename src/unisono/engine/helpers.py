"""The helpers of a rank: the threads that share long moves with the thread of a call. See `kernels.lanes`."""

import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from .compile.plan import Plan
from .compile.program import CACHE_LINE, ROOM, LaneWord, PlanWord, StateWord
from .kernels import kernel

_ENDS_S = 1.0


def address_bytes(ranks: int) -> int:
    """The bytes of a table of a move's addresses, whole cache lines: each rank may have an input and an output."""
    return 16 * ranks + 2 * CACHE_LINE & -CACHE_LINE


def scratch_bytes(ranks: int) -> int:
    """The bytes that a thread needs for moves in a group of this size: see kernels/cross_memory."""
    return ROOM + 8 * ranks + 5 * CACHE_LINE


class Helpers:
    """The helpers of one rank, in all of its groups. They help one call at a time; other calls do without.

    A helper never waits for a peer: it sleeps in the system, and is woken for a move. So a call that fails, an abort
    and `shrink` have no need to end helpers. A forked child has none.

    ranks: the most ranks of a group.
    """

    def __init__(self, ranks: int) -> None:
        self._own_bytes, self._scratch_bytes = address_bytes(ranks), scratch_bytes(ranks)
        self._memory = np.zeros(LaneWord.WORDS + 16, np.int64)
        self.address = self._memory.ctypes.data + 127 & -128
        """Of the words in `LaneWord`."""
        self._own = np.empty(self._own_bytes, np.uint8)
        self._memory[(self.address - self._memory.ctypes.data) // 8 + LaneWord.OWN] = self._own.ctypes.data
        self._threads: list[threading.Thread] = []
        self._ended = False

    def share(self, plan: Plan, state: memoryview, lanes: int) -> None:
        """Divide the long moves of this plan among `lanes` threads.

        state: the words of the rank's state in the group, `RankEngine.words`.
        """
        state[StateWord.LANES] = self.address
        plan.words[PlanWord.LANES] = lanes
        self.start(lanes - 1)

    def start(self, count: int) -> None:
        """Let there be at least so many helpers; there are fewer if the system refuses a thread."""
        help_lanes = kernel("lanes.help_lanes")  # compiled here, if need be
        while len(self._threads) < count and not self._ended:
            thread = threading.Thread(target=self._serve, args=(help_lanes,), name="unisono-helper", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self._threads.append(thread)

    def _serve(self, help_lanes: Callable[..., int]) -> None:
        memory = np.empty(
            self._own_bytes + self._scratch_bytes + 64, np.uint8
        )  # its pages come with their first use, here
        own = memory.ctypes.data + 63 & -64
        help_lanes(self.address, own, own + self._own_bytes)

    def end(self) -> None:
        """End the helpers, and wait for them. Another thread may be in a call: it goes on without them."""
        self._ended = True
        if self._threads:
            kernel("lanes.end")(self.address)
        for thread in self._threads:
            with suppress(RuntimeError):
                thread.join(_ENDS_S)
        self._threads.clear()
