"""Calls that C++ code makes in a watched group, such as the reducer of DistributedDataParallel: no method sees them.

torch counts the calls of a group. If this number is higher than that of the last call of Python code, C++ code has made
a call. If such a call goes on for a second, torch's flight recorder says which call it is.
"""

from __future__ import annotations

import time

from ...base.records import CallRecord
from ...engine.kernels import kernel
from ...engine.logs.plan_registry import PlanNote
from .flight_recorder import is_idle, last_call
from .watched_calls import WatchedCall, WatchedGroup

_LONG_S = 1.0
"""How long a call goes on before the recorder is asked, which takes 20 ms, and how often it is asked again."""


class CppCalls:
    """Logs the last call of a group, if C++ code has made it. For the thread that watches.

    since: when it was first seen, in seconds.
    """

    def __init__(self, watched: WatchedGroup) -> None:
        self._watched, self._cycles = watched, kernel("waiting.read_cycles")
        self._number, self.since, self._ask_at = 0, 0.0, 0.0
        self._looked = self._left = self._cycles()
        self._key = ""
        self._goes_on = False
        self._call: WatchedCall | None = None
        self._noted: tuple[CallRecord, int] | None = None

    def look(self) -> WatchedCall | None:
        """The call from C++ that goes on in this group, for a second already."""
        before, self._looked = self._looked, self._cycles()
        number, now = self._watched.made_in_cpp(), time.monotonic()
        if number != self._number:
            self._begin(number, now, before)
        elif self._goes_on and self._key and is_idle(self._key):
            self._end()
        elif self._goes_on and now >= self._ask_at:
            self._ask_at = now + _LONG_S
            self._ask()
        return self._call

    def _begin(self, number: int, now: float, before: int) -> None:
        """There is a new last call of this number; 0: Python code has made the last one.

        before: when this thread has last looked, in cycles. The log says that the call has ended, until it goes on.
        """
        self._end()
        self._number, self.since, self._ask_at, self._left = number, now, now + _LONG_S, self._looked
        self._goes_on = bool(number)
        if number:
            self._watched.log.enter(number, 0, before)
            self._watched.log.leave(number, self._left)

    def _ask(self) -> None:
        found = last_call(self._watched.name)
        self._key = found.key if found else ""
        if found is None or not found.goes_on:
            self._end()
        elif self._call is None:
            if self._noted is None or self._noted[0] != found.record:
                self._noted = found.record, self._watched.group.host.plan_registry.add_plan(PlanNote(found.record, 0))
            self._watched.log.enter(found.number, self._noted[1], self._left)
            self._call = WatchedCall(self._watched, found.number, found.record)

    def _end(self) -> None:
        if self._call is not None:
            self._watched.log.leave(self._call.number, self._cycles())
        self._goes_on, self._call = False, None
