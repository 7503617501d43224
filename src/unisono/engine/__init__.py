"""Compile tables, prove the compiled programs, run them over shared memory. Start reading at `rank.RankEngine.plan`."""

from ..base.release import RUNS, unsupported

__all__ = []

if not RUNS:
    raise ImportError(unsupported())
