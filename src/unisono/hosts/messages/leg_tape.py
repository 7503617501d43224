"""The rows of an exchange as a tape, which compiled code runs; see `engine.tape`.

If compiled code cannot call the engine of the carrier, it stops at messages. Then this file calls the carrier, and
compiled code goes on.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from ...engine import tape
from ...engine.carrier import Carrier, CompiledCarrier, Handle, Lost
from ...engine.clock import read_cycles
from ...engine.compile.program import DONE, LOST
from ...engine.kernels import kernel
from ...engine.tape import CARRIER, ROW_BYTES, TapeMessageWord, TapeWord
from .journal import Journal
from .message_memory import NO_WIRE, Action, Wire
from .message_program import MOVE, POST, SEND, TAKE

_SPREAD = 0x9E3779B1
_WORDS = ROW_BYTES // 8
_AT, _NUMBER, _STATE = int(TapeWord.AT), int(TapeWord.NUMBER), int(TapeWord.STATE)


class BoundRow(NamedTuple):
    """A row of a program with its memory.

    actions: its copies and combinations.
    number: of the message.
    tag: of its only payload, if it is the same in all calls; else -1.
    """

    kind: int
    actions: Sequence[Action] = ()
    number: int = 0
    peer: int = -1
    round: int = 0
    wire: Wire = NO_WIRE
    tag: int = -1


class _Place(NamedTuple):
    """What a row of the tape is of. payload: its index; -1: none. posts: the POSTs of a TAKE."""

    row: BoundRow
    payload: int
    posts: range = range(0)


class LegTape:
    """A tape in memory. Messages of one call after the other leave it and arrive in it.

    rows: of the program. Each is some rows of the tape.
    combine: the address of the combine kernel; 0: no row combines.
    tag: (number, round, index) -> the tag of a payload that no other call has.
    sends: the payloads that the carrier may still read.
    place: the row of a message at which it waits, or has waited last; at first that of the first message.
    logs: not 0 if its steps are logged in this call.

    If compiled code calls the carrier's engine, the carrier keeps the tape until `close`: the engine may read and write
    its memory.
    """

    def __init__(
        self,
        carrier: Carrier,
        rows: Sequence[BoundRow],
        combine: int,
        tag: Callable[[int, int, int], int],
        journal: Journal | None,
    ) -> None:
        self._carrier, self._tag, self._journal, self.sends = carrier, tag, journal, list[Handle]()
        self._compiled = carrier.compiled if any(row.kind != MOVE for row in rows) else None
        self._run = kernel("replay.run")
        self._receives: dict[int, Handle] = {}
        """Row of a POST -> its payload, which the carrier may still write."""
        self._places, lines = _lines(rows, journal.first if journal else 0)
        self.place = next((place for place in self._places if place.row.peer >= 0), _Place(BoundRow(MOVE), -1))
        self._rows = (ctypes.c_int64 * (_WORDS * max(1, len(lines))))(*chain(*lines))
        self._words = (ctypes.c_int64 * len(TapeWord))()
        self._first, self._address = ctypes.addressof(self._rows), ctypes.addressof(self._words)
        self._words[TapeWord.FIRST], self._words[TapeWord.END] = self._first, self._first + ROW_BYTES * len(lines)
        self._words[TapeWord.KERNEL] = combine
        self._words[TapeWord.SEGMENT] = journal.segment if journal else 0
        self._fault: Callable[[], object] | None = None
        self._unrouted: list[int] = []
        """The rows of payloads whose tags are for another call."""
        if self._compiled is not None:
            self._words[TapeWord.ENGINE] = self._compiled.engine
            self._compiled.tapes.add(self)
            self._unrouted = [at for at, place in enumerate(self._places) if place.payload >= 0]

    def _route(self, compiled: CompiledCarrier, number: int) -> None:
        """Let rows have the tags of the call of this number."""
        for at in self._unrouted:
            row, payload, _ = self._places[at]
            tag = row.tag if row.tag >= 0 else self._tag_of(row, payload, number)
            tag, endpoint = compiled.route(row.peer, tag, sends=row.kind == SEND)
            self._rows[at * _WORDS + TapeMessageWord.TAG] = tag
            if row.kind == SEND:
                self._rows[at * _WORDS + TapeMessageWord.TO] = endpoint
        self._unrouted = [at for at in self._unrouted if self._places[at].row.tag < 0]

    def _tag_of(self, row: BoundRow, payload: int, number: int) -> int:
        """A tag for this call only."""
        return sized(self._tag(number, row.round, payload), row.wire.payloads[payload].numel(), self._carrier.tags)

    def begin(self, number: int) -> None:
        """Begin the call of this number. Payloads of the last call have left."""
        self._words[_NUMBER], self._words[_AT] = number, self._first
        self._words[_STATE] = self.logs = self._journal.host.logged_state if self._journal else 0
        self.sends = []
        if self._compiled is not None and self._unrouted:
            self._route(self._compiled, number)

    def run(self) -> bool:
        """Go on as far as it goes without a wait; True when all is done. Raises Lost."""
        words, first, compiled = self._words, self._first, self._compiled
        status, served = CARRIER, False
        while status == CARRIER:
            if compiled is None:
                status = self._run(self._address, served)
            else:
                status = compiled.replay(self._address, self.place.row.peer)
            if status == CARRIER:
                served = self._serve((words[_AT] - first) // ROW_BYTES)
            elif status == DONE and self._fault is not None:
                fault, served, status = self._fault, False, CARRIER
                self.stop_before(len(self._places), None)
                fault()
        if status == DONE:
            if compiled is None:
                self.sends = self._carrier.pending(self.sends)
            elif words[TapeWord.SENDING]:
                self.sends = self.take_back()
            return True
        self.place = self._places[(words[_AT] - first) // ROW_BYTES]
        if status == LOST and compiled is not None:
            raise compiled.lost(self.place.row.peer, words[TapeWord.STATUS])
        return False

    def stop_before(self, row: int, fault: Callable[[], object] | None) -> None:
        """In this call, call `fault` once, before this row."""
        self._words[TapeWord.END], self._fault = self._first + ROW_BYTES * row, fault

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return len(self._places)

    def _serve(self, at: int) -> bool:
        """Let the carrier do its part of a row. False: compiled code shall look again."""
        (row, payload, posts), carrier, number = self._places[at], self._carrier, self._words[_NUMBER]
        began, buffer = read_cycles() if self.logs else 0, row.wire.receive_buffer
        if row.kind == SEND:
            tag = row.tag if row.tag >= 0 else self._tag_of(row, payload, number)
            self.sends.append(carrier.isend(row.peer, tag, row.wire.payloads[payload]))
            if began:
                self.write_down(began)
        elif row.kind == POST and buffer is not None:
            buffer.post(carrier)
        elif row.kind == POST:
            tag = self._tag_of(row, payload, number)
            self._receives[at] = carrier.irecv(row.peer, tag, row.wire.payloads[payload])
        elif buffer is None:
            for handle in self._adopt(posts):
                handle.settle()
            return self._compiled is None
        elif not buffer.take(number):
            buffer.post(carrier)
            return False
        return True

    def write_down(self, began: int) -> None:
        """Log that this rank has been at its current row since `began`, in cycles, until now."""
        kernel("replay.log")(self._address, began)

    def awaited(self) -> list[Handle]:
        """The payloads of the missing message, if Python code has begun to receive them."""
        row, _, posts = self.place
        buffer = row.wire.receive_buffer
        if buffer is not None:
            return [buffer.handle] if buffer.handle else []
        return [self._receives[post] for post in posts]

    def take_back(self) -> list[Handle]:
        """All payloads that the engine may still read or write. From now on handles stand for them."""
        with suppress(Lost):
            return [*self.sends, *self._adopt(range(len(self._places)))]
        return self.sends

    def _adopt(self, rows: range) -> Iterator[Handle]:
        """The payloads of rows that the engine may still read or write. Raises Lost."""
        for at in rows:
            row, payload, _ = self._places[at]
            place = at * _WORDS + TapeMessageWord.REQUEST
            if receive := self._receives.pop(at, None):
                yield receive
            elif payload >= 0 and self._compiled is not None and (request := self._rows[place]):
                self._rows[place] = 0
                data = row.wire.payloads[payload]
                yield self._compiled.adopt(request, row.peer, data, sends=row.kind == SEND)

    def close(self) -> None:
        """The engine reads and writes no messages of it any more."""
        if self._compiled is not None:
            self._compiled.tapes.discard(self)


def sized(tag: int, nbytes: int, tags: int) -> int:
    """A tag of the lower half; the upper half is for messages from rank to rank. The tag has the size in it: messages
    and receives of different sizes do not meet.
    """
    return (tag + nbytes * _SPREAD) % (tags // 2)


def _lines(rows: Sequence[BoundRow], first: int) -> tuple[list[_Place], list[list[int]]]:
    """The rows of a tape: what each is of, and its words. first: the number of the first step."""
    places: list[_Place] = []
    lines: list[list[int]] = []
    posts: dict[int, range] = {}

    def add(step: int, place: _Place, *words: int) -> None:
        places.append(place)
        lines.append([*words, *[0] * (tape.STEP - len(words)), step])

    for step, row in enumerate(rows, first):
        for out, source, second in row.actions:
            if second is None:
                add(step, _Place(row, -1), tape.COPY, out.data_ptr(), source.data_ptr(), out.nbytes)
            else:
                operands = out.data_ptr(), source.data_ptr(), second.data_ptr()
                add(step, _Place(row, -1), tape.COMBINE, *operands, out.numel())
        if row.kind == TAKE:
            of, wire = posts[row.number], row.wire
            add(step, _Place(row, -1, of), tape.TAKE, wire.watched[0], wire.missing, of.start * ROW_BYTES, len(of))
        elif row.kind in (POST, SEND):
            posts[row.number] = range(len(lines), len(lines) + len(row.wire.payloads))
            for index, payload in enumerate(row.wire.payloads):
                is_last, is_sent = index == len(row.wire.payloads) - 1, row.kind == SEND
                marks = is_last and (row.wire.marked if is_sent else row.wire.receive_buffer is None)
                kind, mark = tape.SEND if is_sent else tape.POST, row.wire.watched[0] if marks else 0
                buffer = None if is_sent else row.wire.receive_buffer
                posted, place = buffer.posted if buffer else 0, (payload.data_ptr(), payload.nbytes)
                add(step, _Place(row, index), kind, mark, *place, posted, row.wire.missing)
    return places, lines
