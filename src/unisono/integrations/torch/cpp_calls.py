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
"""How long a call goes on before the recorder is asked, which takes 20 ms."""


class CppCalls:
    """Logs the last call of a group, if C++ code has made it. For the thread that watches.

    since: when it was first seen, in seconds.
    """

    def __init__(self, watched: WatchedGroup) -> None:
        self._log, self._registry = watched.log, watched.group.host.plan_registry
        self._cycles = kernel("waiting.read_cycles")
        self._number, self.since, self._left, self._looked = 0, 0.0, 0, self._cycles()
        self._key = ""
        self._goes_on = False
        self._call: WatchedCall | None = None
        self._noted: tuple[CallRecord, int] | None = None

    def look(self, watched: WatchedGroup) -> WatchedCall | None:
        """The call from C++ that goes on in this group, for a second already."""
        before, self._looked = self._looked, self._cycles()
        number = watched.made_in_cpp()
        if number != self._number:
            self._begin(number, watched, before)
        elif self._goes_on and (not self._key or is_idle(self._key)):
            self._end()
        elif self._goes_on and self._call is None and time.monotonic() - self.since > _LONG_S:
            found = last_call(watched.name)
            record = found.record if found else CallRecord("a call")
            if self._noted is None or self._noted[0] != record:
                self._noted = record, self._registry.add_plan(PlanNote(record, 0))
            self._log.enter(number, self._noted[1], self._left)
            self._call = WatchedCall(watched, number, record)
        return self._call

    def _begin(self, number: int, watched: WatchedGroup, before: int) -> None:
        """There is a new last call of this number; 0: Python code has made the last one.

        before: when this thread has last looked, in cycles. The log says that the call has ended, until it goes on.
        """
        self._end()
        self._number, self.since, self._goes_on = number, time.monotonic(), bool(number)
        if number:
            self._left = self._looked
            self._log.enter(number, 0, before)
            self._log.leave(number, self._left)
            if not self._key and (found := last_call(watched.name)) is not None:
                self._key = found.key

    def _end(self) -> None:
        if self._call is not None:
            self._log.leave(self._number, self._cycles())
        self._goes_on, self._call = False, None
