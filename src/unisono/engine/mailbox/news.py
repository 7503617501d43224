"""What a rank watches: pairs of words, one of a peer and one of its own, that differ where there is something to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import njit

from ..atomics import clock_gettime, cycles, load, load_acquire, pause, sched_yield, store, usleep
from ..interpret import quick_yield
from .entry import entry_point

__all__ = ["News"]

_PATIENCE_NS, _NAP_SHARE_NS, _LONGEST_NAP_US = 1_000_000, 32_000, 1000


@njit(nogil=True, cache=True)
def _look(pairs, count, found):  # type: ignore[no-untyped-def]
    """Of `count` pairs of addresses, list those whose words differ; returns how many."""
    news = 0
    for k in range(count):
        pair = pairs + 16 * k
        if load_acquire(load(pair)) != load_acquire(load(pair + 8)):
            store(found + 8 * news, k)
            news += 1
    return news


@njit(nogil=True, cache=True)
def _differ(pairs, count):  # type: ignore[no-untyped-def]
    for k in range(count):
        pair = pairs + 16 * k
        if load_acquire(load(pair)) != load_acquire(load(pair + 8)):
            return True
    return False


@njit(nogil=True, cache=True)
def _wait(pairs, count, turn, seen, spinning, waited_ns, limit_ns):  # type: ignore[no-untyped-def]
    """Wait until the words of some pair differ, or the word at `turn` is not what was seen: 1, or 0 after limit_ns.

    Spins where that pays, as the kernel of the collectives does: a first yield that takes long and brings news means
    that the peer needed this very processor. Then yields; who has waited for a thousandth of a second, counting
    `waited_ns` from before, naps.
    """
    spins, most, quick = load(spinning), load(spinning + 8), load(spinning + 16)
    clock = np.empty(2, np.int64)  # of this call's own: several threads may wait
    turns, begin, nap_us = 0, np.int64(0), np.int64(0)
    if waited_ns > _PATIENCE_NS:
        nap_us = min(waited_ns // _NAP_SHARE_NS, _LONGEST_NAP_US)
        spins = most = 0
    for _ in range(spins):
        if load_acquire(turn) != seen or _differ(pairs, count):
            return 1
        pause()
    while True:
        start = cycles()
        if nap_us > 0:
            usleep(np.uint32(nap_us))
        else:
            sched_yield()
        news = load_acquire(turn) != seen or _differ(pairs, count)
        if turns == 0 and most > 0:
            took = cycles() - start
            if news and quick < took < 400 * quick:
                store(spinning, max(8, spins >> 1))
            elif spins < most:
                store(spinning, min(most, max(1, spins) * 2))
        if news:
            return 1
        turns += 1
        if nap_us > 0 or turns & 63 == 0:
            clock_gettime(np.int32(1), clock.ctypes.data)
            now = clock[0] * 1_000_000_000 + clock[1]
            if begin == 0:
                begin = now
            if now - begin > limit_ns:
                return 0
            if waited_ns + now - begin > _PATIENCE_NS:
                nap_us = min((waited_ns + now - begin) // _NAP_SHARE_NS, _LONGEST_NAP_US)


@cache
def _kernels() -> tuple[Callable[[int, int, int], int], Callable[[int, int, int, int, int, int, int], int]]:
    """Compile them, or load them from disk."""
    return entry_point(_look, 3), entry_point(_wait, 7)


class News:
    """`count` places, each with a pair of words, none of which differ at first.

    turn: how often somebody was told of news that is in no place. One thread at a time looks and changes what is
    watched, while others may wait. spins: how long they spin at most.
    """

    def __init__(self, count: int, spins: int) -> None:
        # The pairs, the places found, `turn`, a word that stays 0, and how to spin: now, at most, a quick yield's time.
        words = np.zeros(3 * count + 5, np.int64)
        self._words, self._count = words.data, count
        self._pairs = words.ctypes.data
        self._found = self._pairs + 16 * count
        self._turn = self._found + 8 * count
        self.zero, self._spinning = self._turn + 8, self._turn + 16
        words[: 2 * count] = self.zero
        words[3 * count + 2 :] = spins, spins, 3 * quick_yield()
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
        return bool(self._wait(self._pairs, self._count, self._turn, turn, self._spinning, waited_ns, limit_ns))
