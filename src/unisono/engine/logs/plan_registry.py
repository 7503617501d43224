"""Notes on a rank's plans and groups, in shared memory: what the numbers in its logs mean. Any process may read them.

The rank writes a note when it makes a plan or a group, so no call writes any. Room is limited: the note on a new plan
replaces the oldest one that no call in the rank's logs has used. The rank writes the number of a note last, so a reader
that finds the number finds the whole note.
"""

import itertools
import json
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from ...base.python import members
from ...base.records import CallRecord, fitting
from ..memory_order import RECORD_HEAD, publish, read_record, write_record
from .rank_logs import CallLog

_GROUPS, _PLANS, _SLOT = 32, 224, 512
_ROOM = _SLOT - RECORD_HEAD
PLAN_REGISTRY_BYTES = (_GROUPS + _PLANS) * _SLOT


class PlanNote(NamedTuple):
    """What was called.

    record.where: the line that has made the first such call.
    nbytes: bytes of a block.
    """

    record: CallRecord
    nbytes: int


class GroupNote(NamedTuple):
    """A group of this rank.

    start: where its memory begins in the arena, which tells groups apart.
    rank: this rank's number in the group.
    size: the number of ranks.
    file: the file with its log; empty: the log lies in the group's memory.
    cycles, ns: a moment by both clocks.
    """

    name: str
    start: int
    rank: int
    size: int
    file: str
    cycles: int
    ns: int


class PlanRegistry:
    """The notes of one rank. The owner writes, others read.

    recorder: the `observe.traces.recording.Recording` that also keeps all notes, while the rank traces its calls.
    """

    def __init__(self, pages: memoryview) -> None:
        self._pages = pages
        self._numbers = itertools.count(1)
        self._free = deque(range(_GROUPS))
        self._changes = itertools.count(1)
        """The number of a note on a group: each note in its place has another one, so a reader knows them apart."""
        self._plans = [0] * _PLANS  # place -> the number of the note on a plan there
        self._logs: weakref.WeakSet[CallLog] = weakref.WeakSet()
        self.recorder: Any = None

    def used_by(self, log: CallLog) -> None:
        """Notes on what this log has are kept as long as there is room for them."""
        self._logs.add(log)

    def add_plan(self, note: PlanNote) -> int:
        """Write a note on a plan; return its number."""
        number = next(self._numbers)
        if self._plans[number % _PLANS]:
            used = {noted for log in members(self._logs) for noted in log.latest_notes()}
            for _ in range(_PLANS):
                if self._plans[number % _PLANS] not in used:
                    break
                number = next(self._numbers)
        self._plans[number % _PLANS] = number
        self._write(_GROUPS + number % _PLANS, number, note.nbytes.to_bytes(8, "little") + note.record.pack(_ROOM - 8))
        if self.recorder is not None:
            self.recorder.keep(number, note)
        return number

    def plan(self, number: int) -> PlanNote | None:
        """The note of this number, if it is still there."""
        written, data = self._read(_GROUPS + number % _PLANS)
        if not number or written != number:
            return None
        try:
            return PlanNote(CallRecord.unpack(data[8:]), int.from_bytes(data[:8], "little"))
        except ValueError:
            return None

    def add_group(self, note: GroupNote) -> int | None:
        """Write a note on a group; return its place. None: there is no room."""
        try:
            place = self._free.popleft()
        except IndexError:
            return None
        self.set_group(place, note)
        return place

    def set_group(self, place: int, note: GroupNote) -> None:
        """Write a note on a group in the place of an earlier one."""
        data = fitting(_ROOM, lambda width: note._replace(name=note.name[:width]))
        self._write(place, next(self._changes), data[:_ROOM])

    def remove_group(self, place: int) -> None:
        """Remove the note on a group that the rank uses no more."""
        publish(self._pages, place * _SLOT, 0)
        self._free.append(place)

    def groups(self) -> Iterator[GroupNote]:
        for place in range(_GROUPS):
            written, data = self._read(place)
            if written:
                try:
                    yield GroupNote(*json.loads(data))
                except (TypeError, ValueError):  # another program has written there
                    continue

    def _write(self, place: int, number: int, data: bytes) -> None:
        write_record(self._pages, place * _SLOT, number, data)

    def _read(self, place: int) -> tuple[int, bytes]:
        return read_record(self._pages, place * _SLOT, _ROOM)
