"""How long a yield takes that lets nobody run."""

from __future__ import annotations

from functools import cache

from ..kernels import kernel


@cache
def slow_yield_cycles() -> int:
    """A sched_yield that takes longer has let another process run. In cycles, measured once per process."""
    return 3 * kernel("waiting.time_yield")()
