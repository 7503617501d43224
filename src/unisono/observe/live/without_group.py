"""Ranks that have no group yet, seen from outside: for which rank each waits, where, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from ...base.units import format_seconds, ranks_text
from ...engine.memory.meeting_page import Waiting, waiting_of
from ...engine.process.alive import start_ticks
from .jobs import processes_of
from .rank_stacks import Stack, stack_of_process

_MOST_NAMED = 8


class MeetingRank(NamedTuple):
    """A process that is in `init()`, or makes the first process group."""

    pid: int
    waiting: Waiting
    stack: Stack

    @property
    def line(self) -> str:
        """What it waits for, in words."""
        one = self.waiting
        at = f" at {one.where}" if one.where else ""
        waited_s = format_seconds(max(0.0, (time.monotonic_ns() - one.since_ns) / 1e9))
        return (
            f"rank {one.rank} of {one.size} (pid {self.pid}) has no group yet: for {waited_s} it has waited for "
            f"{ranks_text(one.ranks, _MOST_NAMED)} {one.what}{at}"
        )


def meeting_ranks(pid: int) -> Iterator[MeetingRank]:
    """The ranks among a process and those that it has started."""
    for process in processes_of(pid):
        waiting = waiting_of(process)
        if waiting is not None:
            yield MeetingRank(process, waiting, stack_of_process(process, start_ticks(process), waiting.stacks))
