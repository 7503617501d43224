"""How a rank waits for shared memory to change: it spins, then yields its processor, then naps."""

from __future__ import annotations

from functools import cache

import numpy as np

from .atomics import cycles, load, load_acquire, now_ns, pause, sched_yield, store, usleep
from .compiled import compiled, entry_point

__all__ = ["any_differ", "slow_yield_cycles", "time_yield", "wait"]

_PATIENCE_NS, _NAP_SHARE_NS, _LONGEST_NAP_US = 1_000_000, 32_000, 1000
"""After so long a rank naps: a microsecond for each share that it has waited (the system adds some 50 µs)."""


@compiled
def any_differ(pairs, count):  # type: ignore[no-untyped-def]
    """Whether the two words of any pair differ. pairs: the address of a table of `count` pairs of addresses."""
    for k in range(count):
        pair = pairs + 16 * k
        if load_acquire(load(pair)) != load_acquire(load(pair + 8)):
            return True
    return False


@compiled
def wait(address, goal, pairs, count, most_spins, slow_yield, spins_now, waited_ns, limit_ns):  # type: ignore[no-untyped-def]
    """Wait until the word at `address` has reached its goal, or any pair differs: 1; 0 after limit_ns.

    most_spins: 0 where ranks outnumber processors. slow_yield: see `slow_yield_cycles`. spins_now: address of the
    number of spins, which adapts: where the first yield was slow and brought the change, the peer needed this very
    processor, and the next wait spins half as long; otherwise twice as long, up to most_spins. waited_ns: how long the
    caller has waited before. After a millisecond the peer is busy with something else: naps leave the processor to
    whoever computes, and are so short a part of the time waited that they cost no more than that.
    """
    spins, turns, begin, nap_us = load(spins_now), 0, np.int64(0), np.int64(0)
    if waited_ns > _PATIENCE_NS:
        nap_us = min(waited_ns // _NAP_SHARE_NS, _LONGEST_NAP_US)
        spins = most_spins = 0
    for _ in range(spins):
        if load_acquire(address) >= goal or any_differ(pairs, count):
            return 1
        pause()
    while True:
        start = cycles()
        if nap_us > 0:
            usleep(np.uint32(nap_us))
        else:
            sched_yield()
        changed = load_acquire(address) >= goal or any_differ(pairs, count)
        if turns == 0 and most_spins > 0:
            took = cycles() - start
            if changed and slow_yield < took < 400 * slow_yield:
                store(spins_now, max(8, spins >> 1))
            elif spins < most_spins:
                store(spins_now, min(most_spins, max(1, spins) * 2))
        if changed:
            return 1
        turns += 1
        if nap_us > 0 or turns & 63 == 0:
            now = now_ns()
            if begin == 0:
                begin = now
            if now - begin > limit_ns:
                return 0
            if waited_ns + now - begin > _PATIENCE_NS:
                nap_us = min((waited_ns + now - begin) // _NAP_SHARE_NS, _LONGEST_NAP_US)


@compiled
def time_yield():  # type: ignore[no-untyped-def]
    """Cycles of the fastest of 50 calls of sched_yield: one in which no other process ran."""
    best = np.int64(1 << 60)
    for _ in range(50):
        start = cycles()
        sched_yield()
        best = min(best, cycles() - start)
    return best


@cache
def slow_yield_cycles() -> int:
    """A sched_yield that takes longer has let another process run. Measured once per process."""
    return 3 * entry_point(time_yield)()
