"""Tables to bytes: compile a table, prove the programs, run them over shared memory. Start reading at `plan`."""

from __future__ import annotations

__all__ = []
