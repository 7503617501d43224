"""Compile tables, prove the compiled programs, run them over shared memory. Start reading at `host.Host.plan`."""

from ..base.release import RUNS, unsupported

__all__ = []

if not RUNS:
    raise ImportError(unsupported())
