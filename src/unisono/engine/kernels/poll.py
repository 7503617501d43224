"""Look at several words in shared memory: see `engine.mailbox.poller`."""

from __future__ import annotations

from .atomics import load, load_acquire, store
from .compiled import compiled


@compiled
def poll(pairs, count, ready):  # type: ignore[no-untyped-def]
    """Store the indices of the pairs of addresses whose words differ at `ready`; return how many there are."""
    found = 0
    for k in range(count):
        pair = pairs + 16 * k
        if load_acquire(load(pair)) != load_acquire(load(pair + 8)):
            store(ready + 8 * found, k)
            found += 1
    return found
