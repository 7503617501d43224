"""What a rank watches: pairs of words, one of a peer and one of its own, that differ where there is something to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ..atomics import load, load_acquire, store
from ..compiled import compiled, entry_point
from ..waiting import slow_yield_cycles, wait

__all__ = ["News"]


@compiled
def _look(pairs, count, found):  # type: ignore[no-untyped-def]
    """Of `count` pairs of addresses, list those whose words differ; returns how many."""
    news = 0
    for k in range(count):
        pair = pairs + 16 * k
        if load_acquire(load(pair)) != load_acquire(load(pair + 8)):
            store(found + 8 * news, k)
            news += 1
    return news


@cache
def _kernels() -> tuple[Callable[[int, int, int], int], Callable[..., int]]:
    """Compile them, or load them from disk."""
    return entry_point(_look), entry_point(wait)


class News:
    """`count` places, each with a pair of words, none of which differ at first.

    turn: how often somebody was told of news that is in no place. One thread at a time looks and changes what is
    watched, while others may wait. spins: how long they spin at most.
    """

    def __init__(self, count: int, spins: int) -> None:
        # The pairs, the places found, `turn`, a word that stays 0, and how many spins now.
        words = np.zeros(3 * count + 3, np.int64)
        self._words, self._count = words.data, count
        self._pairs = words.ctypes.data
        self._found = self._pairs + 16 * count
        self._turn = self._found + 8 * count
        self.zero, self._spins_now = self._turn + 8, self._turn + 16
        self._most_spins, self._slow_yield = spins, slow_yield_cycles()
        words[: 2 * count] = self.zero
        words[3 * count + 2] = spins
        self._look, self._wait = _kernels()
        self.turn = 0

    def watch(self, place: int, first: int, second: int) -> None:
        """From now on, the place has news when the words at these addresses differ."""
        self._words[2 * place], self._words[2 * place + 1] = first, second

    def ignore(self, place: int) -> None:
        """The place has no news any more."""
        self.watch(place, self.zero, self.zero)

    def look(self) -> list[int]:
        """The places with news."""
        found = self._look(self._pairs, self._count, self._found)
        places: list[int] = self._words[2 * self._count : 2 * self._count + found].tolist() if found else []
        return places

    def tell(self) -> None:
        """Wake those who wait: something is done."""
        self.turn += 1
        self._words[3 * self._count] = self.turn

    def wait(self, turn: int, waited_s: float, limit_s: float) -> bool:
        """Wait until a place has news, or `turn` is another; False after limit_s seconds.

        waited_s: how long the caller has waited before: it naps the longer.
        """
        waited_ns, limit_ns = int(waited_s * 1e9), int(limit_s * 1e9)
        watched, spinning = (self._turn, turn + 1, 0, self._pairs, self._count), (self._most_spins, self._slow_yield)
        return bool(self._wait(*watched, *spinning, self._spins_now, waited_ns, limit_ns))
