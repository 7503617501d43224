"""Run a rank's program of messages over a carrier, and log its steps for traces.

Its rows are a tape, which compiled code runs. If compiled code cannot call the engine of the carrier, it stops at
messages. Then this file calls the carrier, and compiled code goes on.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple, Protocol

from ...engine import tape
from ...engine.carrier import Carrier, CompiledCarrier, Handle, Lost
from ...engine.clock import read_cycles
from ...engine.compile.program import DONE, LOST
from ...engine.kernels import kernel
from ...engine.tape import CARRIER, ROW_BYTES, TapeMessageWord, TapeWord
from ..carriers.waiter import CarrierWaiter, Settling, settle_apart
from .leg_tape import TapeRow, sized, tape_rows
from .message_memory import Bytes, Memory, Room
from .message_program import ChunkPlace, MessageProgram
from .persistent_receives import ReceiveBuffer, ReceiveBuffers

_SETTLER = CarrierWaiter()
_WORDS = ROW_BYTES // 8
_AT, _NUMBER, _STATE = int(TapeWord.AT), int(TapeWord.NUMBER), int(TapeWord.STATE)


class LogsRows(Protocol):
    """A rank. logged_state: see `Host`."""

    logged_state: int


class Journal(NamedTuple):
    """Where an exchange logs its steps.

    host: has the log. Each run asks it anew.
    segment: the piece of the vector.
    first: the number of the first step in the call.
    """

    host: LogsRows
    segment: int
    first: int


class Exchange:
    """A rank's part in a table, as messages: a state machine that never waits. Calls run it one after the other.

    carrier: moves the messages. If compiled code calls its engine, it keeps the exchange until `close`: the engine may
    read and write its memory.
    program: what this rank does.
    peers: for each rank of the table its rank in the world.
    places: see `Memory`. The carrier only reads places that are GIVEN or FINAL: a message that arrives late, for an
    exchange that has been given up, does no harm there.
    combine: the address of the combine kernel, see `engine.reducers`, and the bytes of an element; None for tables that
    only copy.
    number: the number of the first call, from 1.
    tag: (number, round, index) -> the tag of a message. The index counts the messages from one rank to another in a
    round. No other call may have the tag.
    room: where messages are packed and arrive.
    persistent: round -> the tag of a short message from one rank to another, if it is the same in all calls of a kind.
    Only one such call is made at a time. If the carrier has a thread, receives of these messages are persistent, too.
    journal: where its steps are logged.
    """

    def __init__(
        self,
        carrier: Carrier,
        program: MessageProgram,
        peers: Sequence[int],
        places: Mapping[ChunkPlace, Bytes],
        combine: tuple[int, int] | None,
        number: int,
        tag: Callable[[int, int, int], int],
        *,
        room: Room | None = None,
        persistent: Callable[[int], int] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._carrier, self._tag, self._persistent, self._journal = carrier, tag, persistent, journal
        self._compiled = carrier.compiled if program.messages else None
        self._buffers = ReceiveBuffers.of(carrier) if persistent is not None and carrier.own_thread else None
        self._receive_buffers: list[ReceiveBuffer] = []
        self._receives: dict[int, Handle] = {}
        """Row of a POST -> its payload, which the carrier may still write."""
        self._sends: list[Handle] = []
        """The payloads that the carrier may still read."""
        address, item = combine or (0, 0)
        self.rows = tape_rows(
            program, Memory(places, room or Room()), peers, item,
            self._fixed if persistent is not None else None, None if self._buffers is None else self._receive_buffer,
            journal.first if journal else 0,
        )  # fmt: skip
        self._place = next((row for row in self.rows if row.peer >= 0), TapeRow(tape.COPY, (), 0))
        """The row of a message at which it waits, or has waited last; at first that of the first message."""
        straight = [row.peer for row in self.rows if row.kind == tape.SEND and row.wire.straight]
        self._lends_to = straight[-1] if straight else -1
        """The peer of the last message that leaves straight from places."""
        self._lines = (ctypes.c_int64 * (_WORDS * max(1, len(self.rows))))(*chain(*(row.line for row in self.rows)))
        self._words = (ctypes.c_int64 * len(TapeWord))()
        self._first, self._address = ctypes.addressof(self._lines), ctypes.addressof(self._words)
        self._words[TapeWord.FIRST], self._words[TapeWord.KERNEL] = self._first, address
        self._words[TapeWord.SEGMENT] = journal.segment if journal else 0
        self._run = kernel("replay.run")
        self._unrouted: list[int] = []
        """The rows of payloads whose tags are for another call."""
        if self._compiled is not None:
            self._words[TapeWord.ENGINE] = self._compiled.engine
            self._compiled.tapes.add(self)
            self._unrouted = [at for at, row in enumerate(self.rows) if row.payload >= 0]
        self._news: Callable[[], object] = _nothing
        self.stop_before(len(self.rows), None)
        self.begin(number)

    def _fixed(self, round_: int, nbytes: int) -> int:
        """The tag of a short message in all calls."""
        return sized(self._persistent(round_) if self._persistent else 0, nbytes, self._carrier.tags)

    def _receive_buffer(self, peer: int, round_: int, nbytes: int) -> ReceiveBuffer:
        found = ReceiveBuffers.of(self._carrier).at(peer, self._fixed(round_, nbytes), nbytes)
        self._receive_buffers.append(found)
        return found

    def begin(self, number: int) -> None:
        """Begin the call of this number. This takes less time than a new exchange.

        Messages of the last run have arrived: there was a call in between, and its end told that all ranks had started.
        """
        for handle in self._sends:
            handle.settle()
        self._sends = []
        self._settling: Settling | None = None
        self._awaited: tuple[list[Handle], Settling] | None = None
        self.done, self.waiting_for = False, -1
        words, journal = self._words, self._journal
        words[_NUMBER], words[_AT] = number, self._first
        words[_STATE] = self._logs = journal.host.logged_state if journal else 0
        if self._compiled is not None and self._unrouted:
            self._route(self._compiled, number)

    def _route(self, compiled: CompiledCarrier, number: int) -> None:
        """Let rows have the tags of the call of this number."""
        for at in self._unrouted:
            row = self.rows[at]
            tag, endpoint = compiled.route(row.peer, self._tag_of(row, number), sends=row.kind == tape.SEND)
            self._lines[at * _WORDS + TapeMessageWord.TAG] = tag
            if row.kind == tape.SEND:
                self._lines[at * _WORDS + TapeMessageWord.TO] = endpoint
        self._unrouted = [at for at in self._unrouted if self.rows[at].tag < 0]

    def _tag_of(self, row: TapeRow, number: int) -> int:
        """The tag of a payload in the call of this number."""
        if row.tag >= 0:
            return row.tag
        nbytes = row.wire.payloads[row.payload].nbytes
        return sized(self._tag(number, row.round, row.payload), nbytes, self._carrier.tags)

    def advance(self) -> bool:
        """Start and take in all messages that are ready; True when all is done. Never waits. Raises Lost.

        While it is not done, `waiting_for` is the rank of the world whose message is missing.
        """
        words, carrier, compiled = self._words, self._carrier, self._compiled
        status, served = CARRIER, False
        while status == CARRIER:
            if compiled is None:
                status = self._run(self._address, served)
            else:
                status = compiled.replay(self._address, self._place.peer)
            if status == CARRIER:
                served = self._serve((words[_AT] - self._first) // ROW_BYTES)
            elif status == DONE and self._fault is not None:
                fault, served, status = self._fault, False, CARRIER
                self.stop_before(len(self.rows), None)
                fault()
        if status == DONE:
            self._end()
            return True
        self._place = place = self.rows[(words[_AT] - self._first) // ROW_BYTES]
        if status == LOST and compiled is not None:
            raise compiled.lost(place.peer, words[TapeWord.STATUS])
        self.waiting_for = place.peer
        if self._buffers is not None:
            self._buffers.post_used(carrier)
        if not carrier.own_thread and compiled is None:
            carrier.progress()
        return False

    def _end(self) -> None:
        """All rows are done."""
        if self._compiled is None:
            self._sends = self._carrier.pending(self._sends)
        elif self._words[TapeWord.SENDING]:
            self._sends = self.take_back()
        if self._buffers is not None:
            for buffer in self._receive_buffers:
                self._buffers.has_used(buffer)
        self.done, self.waiting_for = True, -1
        if self._sends and not self._carrier.own_thread:
            self._settling = _SETTLER.settle(self._sends)  # a thread that waits for messages lets them go on

    def stop_before(self, row: int, fault: Callable[[], object] | None) -> None:
        """In this call, call `fault` once, before this row."""
        self._words[TapeWord.END], self._fault = self._first + ROW_BYTES * row, fault

    def _serve(self, at: int) -> bool:
        """Let the carrier do its part of a row. False: compiled code shall look again."""
        row, carrier, number = self.rows[at], self._carrier, self._words[_NUMBER]
        began, buffer = read_cycles() if self._logs else 0, row.wire.receive_buffer
        if row.kind == tape.SEND:
            self._sends.append(carrier.isend(row.peer, self._tag_of(row, number), row.wire.payloads[row.payload]))
            if began:
                self.write_down(began)
        elif row.kind == tape.POST and buffer is not None:
            buffer.post(carrier)
        elif row.kind == tape.POST:
            payload = row.wire.payloads[row.payload]
            self._receives[at] = carrier.irecv(row.peer, self._tag_of(row, number), payload)
        elif buffer is None:
            for handle in self._adopt(row.posts):
                handle.settle()
            return self._compiled is None
        elif not buffer.take(number):
            buffer.post(carrier)
            return False
        return True

    def write_down(self, began: int) -> None:
        """If this is traced, log that this rank has been at its current step since `began`, in cycles, until now."""
        if self._logs and not self.done:
            kernel("replay.log")(self._address, began)

    @property
    def is_under_way(self) -> bool:
        """Is a message missing, or does the carrier still read a message to send?"""
        return not self.done or (self._settling is not None and not (self._settling.over or self._settling.error))

    @property
    def watched(self) -> tuple[int, int] | None:
        """The addresses of two words that differ as soon as the missing message is there. None: no message is missing,
        or no thread brings it while this rank looks there.
        """
        looks = self._carrier.own_thread or self._carrier.wait is not None
        return None if self.done or not looks else self._place.wire.watched

    def wake(self, news: Callable[[], object]) -> bool:
        """Let another thread call `news` when the missing message has come, or when all is sent.

        False if no thread will: the carrier has no thread of its own, or a connection is lost.
        """
        if not self._carrier.own_thread:
            return False
        if self.done:
            self._news = news
            return self.is_under_way
        awaited = self._missing()
        if self._awaited is None or self._awaited[0] != awaited:
            self._awaited = awaited, settle_apart(awaited, news)
        return self._awaited[1].error is None

    def _missing(self) -> list[Handle]:
        """The payloads of the missing message, if Python code has begun to receive them."""
        buffer = self._place.wire.receive_buffer
        if buffer is not None:
            return [buffer.handle] if buffer.handle else []
        return [self._receives[post] for post in self._place.posts]

    def finish_sends(self) -> bool:
        """Whether the carrier has read all messages that it sends from places, so that the places may be written.

        Never waits. The first call that finds a message under way lets a thread wait for it. Short messages are sent
        from copies: with only these, it is true as soon as all is done. Raises Lost. While it is false, `waiting_for`
        is the rank of the world that receives the last message.
        """
        if self._lends_to < 0 or not self._sends:
            return True
        if self._settling is None:
            self._settling = settle_apart(self._sends, self._tell)
        if self._settling.error:
            raise self._settling.error
        self.waiting_for = -1 if self._settling.over else self._lends_to
        return self._settling.over

    def _tell(self) -> None:
        self._news()

    def close(self) -> None:
        """Calls run it no more. A thread keeps what has not left yet. If it is not done, this gives it up."""
        if not self.done:
            self.give_up()
            return
        if self._buffers is not None:
            for buffer in self._receive_buffers:
                self._buffers.give_back(buffer)
        if self._compiled is not None:
            self._compiled.tapes.discard(self)
        if self._sends and self._settling is None:
            _SETTLER.settle(self._sends)

    def give_up(self) -> None:
        """Leave the exchange as it is, for good. Messages may still arrive in its memory and leave it: the carrier
        keeps the memory.
        """
        self._carrier.give_up(self.take_back())
        if self._compiled is not None:
            self._compiled.tapes.discard(self)
        if self._settling is not None and not self._settling.over:
            _SETTLER.replace()

    def take_back(self) -> list[Handle]:
        """All payloads that the engine may still read or write. From now on handles stand for them."""
        with suppress(Lost):
            return [*self._sends, *self._adopt(range(len(self.rows)))]
        return self._sends

    def _adopt(self, rows: range) -> Iterator[Handle]:
        """The payloads of rows that the engine may still read or write. Raises Lost."""
        for at in rows:
            row, place = self.rows[at], at * _WORDS + TapeMessageWord.REQUEST
            if receive := self._receives.pop(at, None):
                yield receive
            elif row.payload >= 0 and self._compiled is not None and (request := self._lines[place]):
                self._lines[place] = 0
                data = row.wire.payloads[row.payload]
                yield self._compiled.adopt(request, row.peer, data, sends=row.kind == tape.SEND)


def _nothing() -> None:
    pass
