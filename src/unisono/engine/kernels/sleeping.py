"""Sleep until a peer writes, and wake the ranks that sleep: the sleeper pays for the fence, the writer for one load.

A word says that ranks sleep until a certain rank writes (`LineWord.ASLEEP`). It has two halves, a flag and a counter. A
rank that goes to sleep reads the counter, sets the flag, lets the system put a full fence into every process that has
registered (`membarrier`), looks once more, and only then sleeps: until the counter changes. A rank that has written
loads the flag, without a fence of its own. If it is set, the rank clears it, raises the counter and wakes all sleepers.

So either the sleeper sees what was written, or the writer sees the flag. The counter is for several sleepers: one must
not take the flag of another for its own, which the writer has cleared already. `tests/engine/test_waiting.py` goes
through all orders.
"""

from __future__ import annotations

import platform

from .atomics import add_half, futex_wait, load_half, signal_fence, store_half, store_release, syscall
from .compiled import compiled

_FUTEX, _MEMBARRIER = (98, 283) if platform.machine() == "aarch64" else (202, 324)
_FUTEX_WAKE, _EVERYBODY = 1, 0x7FFFFFFF
_COUNTER = 4
"""Bytes from the flag to the counter."""
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 2, 4


@compiled
def wake(asleep):  # type: ignore[no-untyped-def]
    """Wake the ranks that sleep until this rank writes, if there are any. To be called behind each such store."""
    signal_fence()
    if load_half(asleep) != 0:
        store_half(asleep, 0)
        add_half(asleep + _COUNTER, 1)
        syscall(_FUTEX, asleep + _COUNTER, _FUTEX_WAKE, _EVERYBODY, 0, 0, 0)
    return 0


@compiled
def publish_and_wake(address, word, asleep):  # type: ignore[no-untyped-def]
    """Store a word, publish by it what has been written before, and wake the ranks that sleep until then."""
    store_release(address, word)
    wake(asleep)


@compiled
def announce(asleep):  # type: ignore[no-untyped-def]
    """Tell the writer that this rank is about to sleep; the ticket for `doze`. It must look once more in between."""
    ticket = load_half(asleep + _COUNTER)
    store_half(asleep, 1)
    syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0, 0, 0, 0)
    return ticket


@compiled
def doze(asleep, ticket, limit_ns):  # type: ignore[no-untyped-def]
    """Sleep until the writer wakes this rank, but no longer than limit_ns. Signals end it, too."""
    futex_wait(_FUTEX, asleep + _COUNTER, ticket, limit_ns)


@compiled
def register():  # type: ignore[no-untyped-def]
    """Let the fences of sleepers reach this process: 1; 0 where the system does not know or permit that."""
    return 1 if syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0) == 0 else 0
