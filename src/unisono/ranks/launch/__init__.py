"""Local worlds: functions and scripts on several ranks of this host. The process that starts them needs no torch."""

from __future__ import annotations

from .worlds import World, run, world

__all__ = ["World", "run", "world"]
