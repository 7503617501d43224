"""Calls that no method of Python sees to its end: those that C++ code makes, such as the reducer of
DistributedDataParallel, and all calls of NCCL, which a GPU makes.

torch counts the calls of a group. If this number is higher than that of the last call of Python code, C++ code has made
a call. If such a call goes on for a second, torch's flight recorder says which call it is. Of NCCL, torch knows which
call has ended last, too. No GPU is asked to wait.
"""

import time

from torch.distributed import distributed_c10d

from ...base.records import CallRecord
from ...engine.kernels import kernel
from ...engine.logs.plan_registry import PlanNote
from .flight_recorder import NCCL, Flight, pending, waited_call
from .watched_calls import WatchedCall, WatchedGroup

_LONG_S = 1.0
"""How long a call goes on before the recorder is asked, which takes 20 ms, and how often it is asked again."""

_FRESH_S = 0.15  # torch looks every 0.1 s which calls of NCCL have ended


class CppCalls:
    """Logs the last call of a group, if C++ code has made it. For the thread that watches.

    since: when what goes on was first seen, in seconds.
    """

    def __init__(self, watched: WatchedGroup) -> None:
        self._watched, self._cycles = watched, kernel("waiting.read_cycles")
        of = watched.of() if watched.backend == NCCL else None
        self._key = "" if of is None else f"{distributed_c10d._get_process_group_uid(of)}"  # noqa: SLF001
        self._on_gpu = bool(self._key)
        self._number, self.since, self._ask_at = 0, 0.0, 0.0
        self._looked = self._left = self._cycles()
        self._begun: tuple[int, int] | None = None
        """Of what may go on: the numbers of the last call, and of the last one that has ended, as far as is known."""
        self._goes_on = False
        self._call: WatchedCall | None = None
        self._noted: tuple[CallRecord, int] | None = None

    def look(self) -> WatchedCall | None:
        """The call that goes on in this group, for a second already."""
        before, self._looked = self._looked, self._cycles()
        number, now = self._watched.made_in_cpp(), time.monotonic()
        if number != self._number and number:  # the log says that it has ended, until it goes on
            self._watched.log.enter(number, 0, before)
            self._watched.log.leave(number, self._looked)
        self._number = number
        begun = pending(NCCL, self._key) if self._on_gpu else (number, 0) if number else None
        if begun != self._begun:
            self._end()
            self._begun, self.since, self._ask_at, self._left = begun, now, now + _LONG_S, self._looked
            self._goes_on = begun is not None
        elif self._goes_on and not self._on_gpu and self._key and not pending(self._watched.backend, self._key):
            self._end()
        elif self._goes_on and now >= self._ask_at:
            self._ask_at = now + _LONG_S
            self.ask()
        return self._call

    def ask(self) -> WatchedCall | None:
        """The call that goes on now, by our log if it tells, else by torch's recorder."""
        if self._on_gpu and time.monotonic() < self.since + _FRESH_S:
            return None
        found = (self._first() or waited_call(self._watched.backend, self._watched.name)) if self._goes_on else None
        if found is None or not found.goes_on:
            self._end()
        elif self._call is None or self._call.number != found.number:
            self._call = WatchedCall(self._watched, found.number, found.record)
            if found.number > max(0, self._watched.log.newest - self._watched.log.calls):
                self._watched.log.enter(found.number, self._note(found.record), self._left)
        self._key = found.key if found else self._key
        return self._call

    def _first(self) -> Flight | None:
        """The first call of NCCL that has not ended, if Python code has made it: this asks the GPU nothing."""
        if not self._on_gpu or self._begun is None or self._watched.exchanged:
            return None
        number, log = self._begun[1] + 1, self._watched.log.read()
        record = self._watched.record(next((one.note for one in log if one.number == number), 0))
        return Flight(self._key, number, True, record) if record else None

    def _note(self, record: CallRecord) -> int:
        if self._noted is None or self._noted[0] != record:
            self._noted = record, self._watched.group.engine.plan_registry.add_plan(PlanNote(record, 0))
        return self._noted[1]

    def _end(self) -> None:
        if self._call is not None and self._call.number:
            self._watched.log.leave(self._call.number, self._cycles())
        self._goes_on, self._call = False, None
