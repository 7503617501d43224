"""The processes of a host's ranks: whether they have ended, and how."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping

from ...engine.process.alive import ending_in_words, exit_status, watch_process
from .regions import Regions
from .state_machine import Ended

_WORDS_S = 0.1
"""How long to wait for the words of who has started a process, where the system does not tell how it has ended."""


class Watching:
    """The processes of ranks, each with its number and its start time. Raises OSError where no descriptor is free."""

    def __init__(self, ranks: Mapping[int, tuple[int, int]], regions: Regions) -> None:
        self._ranks, self._regions = dict(ranks), regions
        self._pidfds = {rank: watch_process(pid, ticks) for rank, (pid, ticks) in ranks.items()}
        """None: the process has ended."""
        self._poller = select.poll()
        for fd in self.descriptors:
            self._poller.register(fd, select.POLLIN)
        self._until: dict[int, float] = {}

    def ended(self, now: float) -> list[Ended]:
        """The ranks whose processes have ended since the last look."""
        found, ready = [], {fd for fd, _ in self._poller.poll(0)}
        for rank, fd in list(self._pidfds.items()):
            if fd is not None and fd not in ready:
                continue
            pid, ticks = self._ranks[rank]
            status = exit_status(pid, ticks, fd)
            waits = status is None and self._regions.departure(rank) is None and self._regions.has_herald(rank)
            if waits and now < self._until.setdefault(rank, now + _WORDS_S):
                continue
            found.append(Ended(rank, "died" if status is None else ending_in_words(status)))
            del self._pidfds[rank]
            if fd is not None:
                self._poller.unregister(fd)
                os.close(fd)
        return found

    @property
    def descriptors(self) -> list[int]:
        """They become readable when a process ends."""
        return [fd for fd in self._pidfds.values() if fd is not None]

    @property
    def impatient(self) -> bool:
        """Is somebody's word waited for?"""
        return any(rank in self._until for rank in self._pidfds)
