"""Run a tape with a rank's carrier: compiled code runs the rows, and stops where Python code has to do its part."""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

from ...engine import tape
from ...engine.carrier import Carrier, Handle, Lost
from ...engine.compile.program import DONE, LOST, WAITING
from ...engine.kernels import kernel
from ...engine.tape import ROW_BYTES, SERVE, TapeLeftWord, TapeMessageWord, TapeWord
from .tape_rows import TapeRow

_WORDS = ROW_BYTES // 8
_AT, _END, _NUMBER, _STATE, _IN, _OUT = map(
    int, (TapeWord.AT, TapeWord.END, TapeWord.NUMBER, TapeWord.STATE, TapeWord.IN, TapeWord.OUT)
)


class TapeRun:
    """A rank's part in calls over hosts of one kind: a state machine that never waits. They run it one after the other.

    carrier: moves the messages. It keeps this object until `close`: its transport may use the messages' memory.
    rows: in the order in which they are done.
    state, news, seen: see `TapeWord`.

    row: the row at which it waits, or has waited last; at first that of the first message.
    status: what compiled code has returned there.
    done: all rows are done.
    """

    def __init__(self, carrier: Carrier, rows: Sequence[TapeRow], state: int = 0, news: int = 0, seen: int = 0) -> None:
        self._carrier, self.rows = carrier, rows
        self._sends: dict[int, Handle] = {}
        """Row of a SEND -> its payload, which the carrier may still read."""
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
        self._words[TapeWord.FIRST], self._words[TapeWord.TRANSPORT] = self._first, carrier.transport
        self._words[TapeWord.NEWS], self._words[TapeWord.SEEN] = news, seen
        self._words[_STATE] = state
        run, peer = kernel("replay.run"), self._any_peer
        self._replay = partial(run, self._address) if peer < 0 else partial(carrier.replay, run, self._address, peer)
        self._unrouted = [at for at, row in enumerate(rows) if row.payload >= 0]
        """The rows of payloads whose tags are for another call."""
        if self._unrouted:
            carrier.tapes.add(self)
        self.done = False
        self.stop_before(len(rows), None)

    def begin(self, number: int, inp: int = 0, out: int = 0) -> None:
        """Begin the call of this number, from 1. inp, out: see `TapeWord`.

        Messages of the last run have arrived: there was a call in between, and its end told that all ranks had started.
        """
        for handle in self._sends.values():
            handle.settle()
        self._sends = {}
        self.done = False
        words = self._words
        words[_NUMBER], words[_AT], words[_IN], words[_OUT] = number, self._first, inp, out
        words[TapeWord.SENDING] = 0
        if self._unrouted:
            self._route()

    def _route(self) -> None:
        """Let rows have the tags of this call."""
        for at in self._unrouted:
            row = self.rows[at]
            tag = row.tag if row.tag >= 0 else row.tag_of(self._words[_NUMBER])
            tag, endpoint = self._carrier.route(row.peer, tag, sends=row.kind == tape.SEND)
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

        While it is not done, `row` is the one at which it waits: as long as the interpreter does.
        """
        words, status = self._words, DONE if self.done else SERVE
        while status == SERVE:
            status = self._replay()
            if status == SERVE:
                status = self._serve((words[_AT] - self._first) // ROW_BYTES)
            elif status == DONE and self._fault is not None:
                fault, status = self._fault, SERVE
                self.stop_before(len(self.rows), None)
                fault()
        if status == DONE:
            if not self.done:
                self.done = True
                if words[TapeWord.SENDING]:
                    self._keep_sending()
            return True
        self.row, self.status = self.rows[(words[_AT] - self._first) // ROW_BYTES], status
        if status == LOST:
            peer = self.row.peer if self.row.peer >= 0 else self._any_peer
            raise self._carrier.lost(peer, words[TapeWord.STATUS])
        return False

    def _keep_sending(self) -> None:
        """Let the carrier move what has not left while this rank does not."""
        self._sends.update(self._adopt(self._send_rows))
        self._carrier.keep_moving(self._sends.values())
        self._words[TapeWord.SENDING] = 0

    def stop_before(self, row: int, fault: Callable[[], object] | None) -> None:
        """In this call, call `fault` once, before this row."""
        self._words[_END], self._fault = self._first + ROW_BYTES * row, fault

    def _serve(self, at: int) -> int:
        """Do Python's part of a row: SERVE, if compiled code shall go on; else WAITING."""
        row = self.rows[at]
        if row.kind == tape.LEFT:
            if not self._have_left(at):
                return WAITING
            self._words[_AT] += ROW_BYTES
        elif row.kind in (
            tape.RUN,
            tape.MEET,
        ):  # ranks of this host may wait for messages of this rank
            self._keep_sending()
        else:  # a TAKE
            first = self._posts[id(row.wire)]
            for _, handle in self._adopt(range(first, first + len(row.wire.payloads))):
                handle.settle()
        return SERVE

    def _have_left(self, at: int) -> bool:
        """Has the carrier read the payloads of a LEFT? Raises Lost."""
        self._sends.update(self._adopt(self._send_rows))
        piece = self.rows[at].words[TapeLeftWord.PIECE - 1]
        sends = [send for send in self._sends if send < at and piece in (-1, self.rows[send].piece)]
        self._unread = self.rows[sends[0]].peer if sends else -1
        if self._carrier.pending([self._sends[send] for send in sends]):
            return False
        for send in sends:
            del self._sends[send]
        return True

    def close(self) -> None:
        """Calls run it no more. What has not left yet still does. If it is not done, this gives it up."""
        if not self.done:
            self.give_up()
            return
        self._carrier.tapes.discard(self)
        self._carrier.keep_moving(self._sends.values())

    def give_up(self) -> None:
        """Leave the tape as it is, for good. Messages may still arrive and leave: the carrier keeps their memory."""
        self._carrier.give_up(self.take_back())
        self._carrier.tapes.discard(self)

    def take_back(self) -> list[Handle]:
        """All payloads that the transport may still read or write."""
        handles = self._sends
        with suppress(Lost):
            handles = self._sends | dict(self._adopt(range(len(self.rows))))
        return [*handles.values()]

    def _adopt(self, rows: Iterable[int]) -> Iterator[tuple[int, Handle]]:
        """The payloads of rows that the transport may still read or write; from now on, these handles. Raises Lost."""
        for at in rows:
            row, place = self.rows[at], at * _WORDS + TapeMessageWord.REQUEST
            if row.payload >= 0 and (request := self._lines[place]):
                self._lines[place] = 0
                data = row.wire.payloads[row.payload]
                yield at, self._carrier.adopt(request, row.peer, data, sends=row.kind == tape.SEND)
