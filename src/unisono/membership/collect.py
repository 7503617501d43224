"""Wait for the reports of ranks that work on a task, while some of them die and all of them print."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial

from ..engine.arena import Arena
from ..records import How
from .output import Outlet
from .protocol import Report
from .transport import Channel, remaining

__all__ = ["Collection"]


class Collection:
    """The reports of one run, as they come in."""

    def __init__(
        self,
        controls: Sequence[Channel],
        zygote: Channel,
        pids: Sequence[int],
        arena: Arena,
        outlets: Sequence[Outlet],
    ) -> None:
        self._controls, self._zygote, self._pids, self._arena, self._outlets = controls, zygote, pids, arena, outlets
        self._reports: dict[int, tuple[Report, bytes]] = {}
        self._heard = set(range(len(controls)))
        """The ranks whose channel has not ended."""
        self._selector = selectors.DefaultSelector()
        self._deadline: float | None = None
        self._grace_s: float | None = None

    def wait(self, deadline: float | None, grace_s: float) -> dict[int, tuple[Report, bytes]]:
        """Each rank's report and its cargo, without the ranks that gave none in time.

        In time means until the deadline, and within grace_s of the first failure.
        """
        self._deadline, self._grace_s = deadline, grace_s
        with self._selector:
            for rank, control in enumerate(self._controls):
                self._watch(control, partial(self._listen, rank))
            self._watch(self._zygote, self._hear_of_deaths)
            for outlet in self._outlets:
                if outlet.pipe_end is not None:
                    self._watch(outlet.pipe_end, outlet.forward)
            try:
                while len(self._reports) < len(self._controls) and not self._late():
                    for key, _ in self._selector.select(remaining(self._deadline)):
                        key.data()
            finally:
                for outlet in self._outlets:
                    outlet.finish()
        return self._reports

    def _watch(self, file: Channel | int, act: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)

    def _late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _listen(self, rank: int) -> None:
        if rank not in self._heard:
            return
        try:
            message = self._controls[rank].poll()
        except EOFError:  # it has died, or is about to: the zygote will say how
            self._selector.unregister(self._controls[rank])
            self._heard.remove(rank)
            return
        if message is not None:
            self._add(message.note, message.cargo)

    def _hear_of_deaths(self) -> None:
        try:
            while (message := self._zygote.poll()) is not None:
                _, rank, status = message.note
                self._bury(rank, _in_words(status))
        except EOFError:
            self._selector.unregister(self._zygote)
            for rank in range(len(self._controls)):
                self._bury(rank, "was killed together with the process that ranks are forked from")

    def _bury(self, rank: int, how: str) -> None:
        if rank not in self._reports:
            self._listen(rank)  # its last words may still be in the channel
        if rank not in self._reports:
            self._arena.mark_gone(rank, How.DIED, how)
            self._add(Report(rank, "died", how, f"process {self._pids[rank]} {how}\n", time.monotonic_ns()), b"")

    def _add(self, report: Report, cargo: bytes) -> None:
        self._reports[report.rank] = report, cargo
        if report.kind != "returned" and self._grace_s is not None:
            end = time.monotonic() + self._grace_s
            self._deadline = end if self._deadline is None else min(self._deadline, end)
            self._grace_s = None


def _in_words(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with code {code}"
    names = {int(known): known.name for known in signal.Signals}
    return f"was killed by signal {-code} ({names.get(-code, 'real-time')})"
