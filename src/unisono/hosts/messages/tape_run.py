"""Run a tape with a rank's carrier.

Compiled code runs the rows. If it cannot call the engine of the carrier, it stops at messages. Then this file calls the
carrier, and compiled code goes on.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from ...engine import tape
from ...engine.carrier import Carrier, CompiledCarrier, Handle, Lost
from ...engine.compile.program import DONE, LOST, WAITING
from ...engine.kernels import kernel
from ...engine.tape import ROW_BYTES, SERVE, TapeLeftWord, TapeMessageWord, TapeWord
from ..carriers.waiter import Settling, settle_apart
from .persistent_receives import ReceiveBuffer, ReceiveBuffers
from .tape_rows import TapeRow

_WORDS = ROW_BYTES // 8
_AT, _END, _NUMBER, _STATE, _IN, _OUT = map(
    int, (TapeWord.AT, TapeWord.END, TapeWord.NUMBER, TapeWord.STATE, TapeWord.IN, TapeWord.OUT)
)


class TapeRun:
    """A rank's part in calls over hosts of one kind: a state machine that never waits. They run it one after the other.

    carrier: moves the messages. If compiled code calls its engine, it keeps this object until `close`: the engine may
    read and write its memory.
    rows: in the order in which they are done.
    buffers: where persistent receives of its messages are.
    state, news, seen: see `TapeWord`.

    row: the row at which it waits, or has waited last; at first that of the first message.
    status: what compiled code has returned there.
    done: all rows are done.
    """

    def __init__(
        self,
        carrier: Carrier,
        rows: Sequence[TapeRow],
        buffers: Sequence[ReceiveBuffer],
        state: int = 0,
        news: int = 0,
        seen: int = 0,
    ) -> None:
        self._carrier, self.rows = carrier, rows
        self._compiled = carrier.compiled if any(row.peer >= 0 for row in rows) else None
        self._buffers = ReceiveBuffers.of(carrier) if buffers else None
        self._receive_buffers = buffers
        self._receives: dict[int, Handle] = {}
        """Row of a POST -> its payload, which the carrier may still write."""
        self._sends: dict[int, Handle] = {}
        """Row of a SEND -> its payload, which the carrier may still read."""
        self._moved: list[Handle] = []
        """Those for which a thread waits, as the carrier has none."""
        self._send_rows = [at for at, row in enumerate(rows) if row.kind == tape.SEND]
        self._posts: dict[int, int] = {}
        """The `id` of the memory of a message -> the row of its first POST; the others follow."""
        for at, row in enumerate(rows):
            if row.kind == tape.POST:
                self._posts.setdefault(id(row.wire), at)
        self.row, self.status = next((row for row in rows if row.peer >= 0), TapeRow(tape.COPY, ())), DONE
        self._any_peer = self._unread = self.row.peer
        lines = chain(*(row.line(self._posts.get(id(row.wire), 0)) for row in rows))
        self._lines = (ctypes.c_int64 * (_WORDS * max(1, len(rows))))(*lines)
        self._words = (ctypes.c_int64 * len(TapeWord))()
        self._first, self._address = ctypes.addressof(self._lines), ctypes.addressof(self._words)
        self._words[TapeWord.FIRST] = self._first
        self._words[TapeWord.NEWS], self._words[TapeWord.SEEN] = news, seen
        self._words[_STATE] = state
        self._run = kernel("replay.run")
        self._unrouted: list[int] = []
        """The rows of payloads whose tags are for another call."""
        if self._compiled is not None:
            self._words[TapeWord.ENGINE] = self._compiled.engine
            self._compiled.tapes.add(self)
            self._unrouted = [at for at, row in enumerate(rows) if row.payload >= 0]
        self._news: Callable[[], object] = _nothing
        self.done = False
        self.stop_before(len(rows), None)

    def begin(self, number: int, inp: int = 0, out: int = 0) -> None:
        """Begin the call of this number, from 1. inp, out: see `TapeWord`.

        Messages of the last run have arrived: there was a call in between, and its end told that all ranks had started.
        """
        for handle in self._sends.values():
            handle.settle()
        self._sends, self._moved = {}, list[Handle]()
        self._awaited: tuple[list[Handle], Settling] | None = None
        self.done = False
        words = self._words
        words[_NUMBER], words[_AT], words[_IN], words[_OUT] = number, self._first, inp, out
        words[TapeWord.SENDING] = 0
        if self._compiled is not None and self._unrouted:
            self._route(self._compiled)

    def _route(self, compiled: CompiledCarrier) -> None:
        """Let rows have the tags of this call."""
        for at in self._unrouted:
            row = self.rows[at]
            tag = row.tag if row.tag >= 0 else row.tag_of(self._words[_NUMBER])
            tag, endpoint = compiled.route(row.peer, tag, sends=row.kind == tape.SEND)
            self._lines[at * _WORDS + TapeMessageWord.TAG] = tag
            if row.kind == tape.SEND:
                self._lines[at * _WORDS + TapeMessageWord.TO] = endpoint
        self._unrouted = [at for at in self._unrouted if self.rows[at].tag < 0]

    @property
    def waiting_for(self) -> int:
        """The rank of the world whose message is missing, or that has not read one; -1: none."""
        return -1 if self.done else self._unread if self.row.kind == tape.LEFT else self.row.peer

    @property
    def turn(self) -> int:
        """The turn of the row that comes next; when all are done, of the last one."""
        return self.rows[min((self._words[_AT] - self._first) // ROW_BYTES, len(self.rows) - 1)].turn

    def advance(self) -> bool:
        """Go on as far as it goes without a long wait; True when all is done. Raises Lost.

        While it is not done, `row` is the one at which it waits. It waits for no message; for ranks of this host, at a
        RUN or a MEET, as long as the interpreter does.
        """
        words, compiled, status = self._words, self._compiled, DONE if self.done else SERVE
        while status == SERVE:
            if compiled is None:
                status = self._run(self._address)
            else:
                status = compiled.replay(self._run, self._address, self._any_peer)
            if status == SERVE:
                status = self._serve((words[_AT] - self._first) // ROW_BYTES)
                if status == DONE:
                    words[_AT] += ROW_BYTES
                    status = SERVE
            elif status == DONE and self._fault is not None:
                fault, status = self._fault, SERVE
                self.stop_before(len(self.rows), None)
                fault()
        if status == DONE:
            if not self.done:
                self._end()
            return True
        self.row, self.status = self.rows[(words[_AT] - self._first) // ROW_BYTES], status
        if status == LOST and compiled is not None:
            peer = self.row.peer if self.row.peer >= 0 else self._any_peer
            raise compiled.lost(peer, words[TapeWord.STATUS])
        if self._buffers is not None:
            self._buffers.post_used(self._carrier)
        if not self._carrier.own_thread and compiled is None:
            self._carrier.progress()
        return False

    def _keep_sending(self) -> None:
        """Let a thread move what has not left, as the carrier has none: it waits for these messages."""
        self._sends.update(self._adopt(self._send_rows))
        self._words[TapeWord.SENDING] = 0
        unmoved = self._carrier.pending(self._sends.values())
        if unmoved and unmoved != self._moved:
            settle_apart(unmoved, _nothing)
            self._moved = unmoved

    def _end(self) -> None:
        """All rows are done."""
        if self._buffers is not None:
            for buffer in self._receive_buffers:
                self._buffers.has_used(buffer)
        self.done = True
        if self._words[TapeWord.SENDING]:
            self._keep_sending()

    def stop_before(self, row: int, fault: Callable[[], object] | None) -> None:
        """In this call, call `fault` once, before this row."""
        self._words[_END], self._fault = self._first + ROW_BYTES * row, fault

    def _serve(self, at: int) -> int:
        """Let the carrier do its part of a row: DONE, WAITING, or SERVE, if compiled code shall look again."""
        row, carrier = self.rows[at], self._carrier
        buffer = row.wire.receive_buffer
        if row.kind == tape.LEFT:
            return DONE if self._have_left(at) else WAITING
        if row.kind in (tape.RUN, tape.MEET):  # it may wait for ranks of this host, and they for messages of this rank
            self._keep_sending()
            return SERVE
        if row.kind == tape.SEND:
            tag = row.tag if row.tag >= 0 else row.tag_of(self._words[_NUMBER])
            self._sends[at] = carrier.isend(row.peer, tag, row.wire.payloads[row.payload])
            self._words[TapeWord.SENDING] = not carrier.own_thread
        elif row.kind == tape.POST and buffer is not None:
            buffer.post(carrier)
        elif row.kind == tape.POST:
            tag = row.tag if row.tag >= 0 else row.tag_of(self._words[_NUMBER])
            self._receives[at] = carrier.irecv(row.peer, tag, row.wire.payloads[row.payload])
        elif buffer is None:
            for _, handle in self._adopt(self._posts_of(row)):
                handle.settle()
            return DONE if self._compiled is None else SERVE
        elif not buffer.take(self._words[_NUMBER]):
            buffer.post(carrier)
            return SERVE
        return DONE

    def _posts_of(self, row: TapeRow) -> range:
        """The POSTs of a TAKE."""
        first = self._posts[id(row.wire)]
        return range(first, first + len(row.wire.payloads))

    def _have_left(self, at: int) -> bool:
        """Has the carrier read the payloads of a LEFT? Raises Lost."""
        self._sends.update(self._adopt(self._send_rows))
        piece = self.rows[at].words[TapeLeftWord.PIECE - 1]
        sends = [send for send in self._sends if send < at and piece in (-1, self.rows[send].piece)]
        handles = [self._sends[send] for send in sends]
        self._unread = self.rows[sends[0]].peer if sends else -1
        if self._carrier.own_thread:
            if self._awaited is None or self._awaited[0] != handles:
                self._awaited = handles, settle_apart(handles, self._tell)
            if self._awaited[1].error is not None:
                raise self._awaited[1].error
            if not self._awaited[1].over:
                return False
        elif self._carrier.pending(handles):
            return False
        for send in sends:
            del self._sends[send]
        return True

    @property
    def watched(self) -> tuple[int, int] | None:
        """The addresses of two words that differ as soon as the missing message is there. None: no message is missing,
        or no thread brings it while this rank looks there.
        """
        return None if not self._carrier.own_thread or self.row.kind != tape.TAKE else self.row.wire.watched

    def wake(self, news: Callable[[], object]) -> bool:
        """Let another thread call `news` when the missing message has come, or has left.

        False if no thread will: the carrier has no thread of its own, or a connection is lost.
        """
        if not self._carrier.own_thread:
            return False
        if self.row.kind == tape.LEFT:
            self._news = news
            return self._awaited is not None and not self._awaited[1].over
        awaited = self._missing()
        if self._awaited is None or self._awaited[0] != awaited:
            self._awaited = awaited, settle_apart(awaited, news)
        return self._awaited[1].error is None

    def _missing(self) -> list[Handle]:
        """The payloads of the missing message, if Python code has begun to receive them."""
        buffer = self.row.wire.receive_buffer
        if buffer is not None:
            return [buffer.handle] if buffer.handle else []
        return [self._receives[post] for post in self._posts_of(self.row)]

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
        if self._sends:
            settle_apart([*self._sends.values()], _nothing)

    def give_up(self) -> None:
        """Leave the tape as it is, for good. Messages may still arrive and leave: the carrier keeps their memory."""
        self._carrier.give_up(self.take_back())
        if self._compiled is not None:
            self._compiled.tapes.discard(self)

    def take_back(self) -> list[Handle]:
        """All payloads that the engine may still read or write."""
        handles = self._sends
        with suppress(Lost):
            handles = self._sends | dict(self._adopt(range(len(self.rows))))
        return [*handles.values()]

    def _adopt(self, rows: Iterable[int]) -> Iterator[tuple[int, Handle]]:
        """The payloads of rows that the engine may still read or write; from now on, these handles. Raises Lost."""
        for at in rows:
            row, place = self.rows[at], at * _WORDS + TapeMessageWord.REQUEST
            if receive := self._receives.pop(at, None):
                yield at, receive
            elif row.payload >= 0 and self._compiled is not None and (request := self._lines[place]):
                self._lines[place] = 0
                data = row.wire.payloads[row.payload]
                yield at, self._compiled.adopt(request, row.peer, data, sends=row.kind == tape.SEND)


def _nothing() -> None:
    pass
