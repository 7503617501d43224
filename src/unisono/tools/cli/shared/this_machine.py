"""What stands beside every figure: the processor, how many of them, the date."""

from __future__ import annotations

import datetime
import os


def processors() -> int:
    """How many processors this process may run on."""
    return len(os.sched_getaffinity(0))


def date() -> str:
    """Now, to the minute, as `2026-11-20 20:42 UTC`."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
