"""Sleep until a peer writes, and wake the ranks that sleep: the sleeper pays for the fence, the writer for one load.

Each control line has a word ASLEEP. A rank that goes to sleep sets that of the rank for which it waits, lets the system
put a full fence into every process that has registered (`membarrier`), looks once more, and only then sleeps, on that
word. A rank that has written a word loads its own ASLEEP, without a fence of its own, and wakes all sleepers if it is
set. So either the sleeper sees what was written, or the writer sees that somebody sleeps: `tests/engine/test_sleeping.py`
goes through all orders. The word is set by sleepers and cleared by the writer only.
"""

from __future__ import annotations

import platform

from .atomics import futex_wait, load_acquire, signal_fence, store_release, syscall
from .compiled import compiled

__all__ = ["announce", "doze", "publish_and_wake", "register", "wake"]

_FUTEX, _MEMBARRIER = (98, 283) if platform.machine() == "aarch64" else (202, 324)
_FUTEX_WAKE, _EVERYBODY = 1, 0x7FFFFFFF
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 2, 4


@compiled
def wake(asleep):  # type: ignore[no-untyped-def]
    """Wake the ranks that sleep until this rank writes, if there are any. To be called behind each such store."""
    signal_fence()
    if load_acquire(asleep) != 0:
        store_release(asleep, 0)
        syscall(_FUTEX, asleep, _FUTEX_WAKE, _EVERYBODY, 0, 0, 0)
    return 0


@compiled
def publish_and_wake(address, word, asleep):  # type: ignore[no-untyped-def]
    """Store a word, publish by it what has been written before, and wake the ranks that sleep until then."""
    store_release(address, word)
    wake(asleep)


@compiled
def announce(asleep):  # type: ignore[no-untyped-def]
    """Let the writer know that a rank is about to sleep. It must look once more at what it waits for before it does."""
    store_release(asleep, 1)
    syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, 0, 0, 0, 0, 0)


@compiled
def doze(asleep, limit_ns):  # type: ignore[no-untyped-def]
    """Sleep until the writer wakes this rank, but no longer than limit_ns. Signals end it, too."""
    futex_wait(_FUTEX, asleep, 1, limit_ns)


@compiled
def register():  # type: ignore[no-untyped-def]
    """Let the fences of sleepers reach this process: 1; 0 where the system does not know or permit that."""
    return 1 if syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0) == 0 else 0
