"""Collect the reports of ranks that work on a task; meanwhile forward their output, and notice which ranks die."""

import math
import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ...base.fd_channel import Channel, remaining
from ...base.records import DepartureKind
from ...engine.memory.arena import Arena
from ...engine.process.alive import ending_in_words, is_ending
from .launch_messages import STARTED, Report
from .output import RankOutput


class StartedRank(NamedTuple):
    """A rank, as its parent sees it: the connection to it, the memory of its host, and its process."""

    channel: Channel
    arena: Arena
    pid: int


class Collector:
    """The reports of one run.

    ended: the ranks that have ended before the run -> their wait status.
    reports: rank -> the report and its payload.
    starting: the ranks that have not begun the function.
    idle: the ranks that have reported, and wait for the next task.
    """

    def __init__(self, ranks: Sequence[StartedRank], fork_server: Channel, ended: Mapping[int, int]) -> None:
        self._ranks, self._fork_server, self._ended = ranks, fork_server, ended
        self.reports: dict[int, tuple[Report, bytes]] = {}
        self.idle: set[int] = set()
        self.starting = set(range(len(ranks)))
        self._connected = set(range(len(ranks)))
        self._selector = selectors.DefaultSelector()

    def wait(self, outputs: Iterable[RankOutput], start_deadline: float, timeout_s: float, grace_s: float) -> None:
        """Collect until every rank has reported or time is up.

        Time is up at start_deadline if a rank has not begun the function by then, timeout_s after the last rank has
        begun, and grace_s after the first failure.
        """
        self._deadline, self._timeout_s, self._grace_s, self._grace_end = start_deadline, timeout_s, grace_s, math.inf
        with self._selector:
            for rank, of in enumerate(self._ranks):
                self._watch(of.channel, partial(self._listen, rank))
            self._watch(self._fork_server, self._hear_of_deaths)
            for output in outputs:
                if output.pipe_end is not None:
                    self._watch(output.pipe_end, output.forward)
            try:
                for rank, status in self._ended.items():
                    self._add_death(rank, ending_in_words(status))
                while len(self.reports) < len(self._ranks):
                    until = min(self._deadline, self._grace_end)
                    if time.monotonic() >= until:
                        break
                    for key, _ in self._selector.select(remaining(until)):
                        key.data()
            finally:
                for output in outputs:
                    output.finish()

    def _watch(self, file: Channel | int, act: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _listen(self, rank: int) -> None:
        of = self._ranks[rank]
        try:
            while rank in self._connected and (message := of.channel.poll()) is not None:
                if message.value == STARTED:
                    self._begins(rank)
                else:
                    self.idle.add(rank)
                    self._add(message.value, message.payload)
        except EOFError:
            if rank in self._connected:
                self._selector.unregister(of.channel)
                self._connected.remove(rank)
            if not is_ending(of.pid):  # else the fork server will say how it has ended
                self._add_death(rank, "runs another program now, or has closed its descriptors")

    def _hear_of_deaths(self) -> None:
        try:
            while (message := self._fork_server.poll()) is not None:
                _, rank, status = message.value
                self._add_death(rank, ending_in_words(status))
        except EOFError:
            self._selector.unregister(self._fork_server)
            for rank in range(len(self._ranks)):
                self._add_death(rank, "was killed together with the process that ranks are forked from")

    def _add_death(self, rank: int, how: str) -> None:
        self._listen(rank)  # its report may still be in the channel
        self.idle.discard(rank)
        if rank not in self.reports:
            of = self._ranks[rank]
            of.arena.board(rank).set_gone(DepartureKind.DIED, how)
            self._add(Report(rank, "died", how, f"process {of.pid} {how}\n", time.monotonic_ns()), b"")

    def _add(self, report: Report, payload: bytes) -> None:
        self.reports[report.rank] = report, payload
        self._begins(report.rank)
        if report.kind != "returned":
            self._grace_end = min(self._grace_end, time.monotonic() + self._grace_s)

    def _begins(self, rank: int) -> None:
        if self.starting == {rank}:
            self._deadline = time.monotonic() + self._timeout_s
        self.starting.discard(rank)
