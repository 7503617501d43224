"""The rows of an exchange as a tape, which compiled code runs together with the carrier's engine; see `engine.tape`."""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ...engine import tape
from ...engine.carrier import CompiledCarrier, Handle, Lost
from ...engine.compile.program import DONE, LOST
from ...engine.tape import ROW_BYTES, TapeMessageWord, TapeWord
from .message_memory import NO_WIRE, Action, Wire
from .message_program import MOVE, POST, SEND, TAKE

_WORDS = ROW_BYTES // 8
_AT, _FIRST, _NUMBER = int(TapeWord.AT), int(TapeWord.FIRST), int(TapeWord.NUMBER)
_REQUEST = int(TapeMessageWord.REQUEST)


class BoundRow(NamedTuple):
    """A row of a program with its memory.

    actions: its copies and combinations.
    deeds: functions that make them.
    tags: the tags of the message, if they are the same in all calls. Then its word is the number of the call.
    """

    kind: int
    actions: Sequence[Action]
    deeds: Sequence[Callable[[], object]]
    number: int = 0
    peer: int = -1
    round: int = 0
    wire: Wire = NO_WIRE
    tags: tuple[int, ...] = ()


class LegTape:
    """A tape in memory. Messages of one call after the other leave it and arrive in it.

    rows: all messages have the same tags in all calls, and so each is one payload with its word.
    kernel: the address of the combine kernel; 0: no row combines.
    at: the row of the program at which the tape is.

    The carrier keeps it until `close`, because the engine may read and write its memory.
    """

    def __init__(self, carrier: CompiledCarrier, rows: Sequence[BoundRow], kernel: int) -> None:
        self._carrier, self._bound, self.at = carrier, rows, 0
        self._numbers: list[int] = []
        """For each row of the tape, the row of the program."""
        self._messages: list[tuple[BoundRow, int]] = []
        """The rows of messages with a request, and where they have it."""
        words: list[list[int]] = []
        posts: dict[int, int] = {}
        for number, row in enumerate(rows):
            words += [_action(action) for action in row.actions]
            if row.kind in (POST, SEND):
                posts[row.number] = len(words)
                self._messages.append((row, len(words) * _WORDS + _REQUEST))
                words.append(self._message(row))
            elif row.kind == TAKE:
                words.append([tape.TAKE, posts[row.number] * ROW_BYTES])
            self._numbers += [number] * (len(words) - len(self._numbers))
        self._rows = (ctypes.c_int64 * (_WORDS * max(1, len(words))))()
        first = ctypes.addressof(self._rows)
        for k, each in enumerate(words):
            if each[0] == tape.TAKE:
                each[TapeMessageWord.MARK] += first
            self._rows[k * _WORDS : k * _WORDS + len(each)] = [*each]
        self._words = (ctypes.c_int64 * len(TapeWord))()
        self._words[_FIRST], self._words[TapeWord.END] = first, first + ROW_BYTES * len(words)
        self._words[TapeWord.KERNEL], self._words[TapeWord.ENGINE] = kernel, carrier.engine
        self._address = ctypes.addressof(self._words)
        carrier.tapes.add(self)

    def _message(self, row: BoundRow) -> list[int]:
        (payload,) = row.wire.payloads
        tag, endpoint = self._carrier.route(row.peer, row.tags[0], sends=row.kind == SEND)
        kind = tape.SEND if row.kind == SEND else tape.POST
        return [kind, row.wire.watched[0], payload.data_ptr(), payload.nbytes, tag, endpoint]

    def begin(self, number: int) -> None:
        """Begin the call of this number."""
        self._words[_NUMBER], self._words[_AT], self.at = number, self._words[_FIRST], 0

    def run(self) -> bool:
        """Go on as far as it goes without a wait; True when all is done. Raises Lost."""
        peer = next(row.peer for row in self._bound[self.at :] if row.kind != MOVE)  # a tape waits at messages only
        status = self._carrier.replay(self._address, peer)
        if status == DONE:
            return True
        self.at = self._numbers[(self._words[_AT] - self._words[_FIRST]) // ROW_BYTES]
        if status == LOST:
            raise self._carrier.lost(self._bound[self.at].peer, self._words[TapeWord.STATUS])
        return False

    @property
    def is_sending(self) -> bool:
        """May the engine still read messages when all is done?"""
        return bool(self._words[TapeWord.SENDING])

    def take_back(self) -> list[Handle]:
        """The messages that the engine may still read or write. From now on handles stand for them."""
        handles = []
        for row, place in self._messages:
            if request := self._rows[place]:
                self._rows[place] = 0
                with suppress(Lost):
                    data = row.wire.payloads[0]
                    handles.append(self._carrier.adopt(request, row.peer, data, sends=row.kind == SEND))
        return handles

    def close(self) -> None:
        """The engine reads and writes no messages of it any more."""
        self._carrier.tapes.discard(self)


def _action(action: Action) -> list[int]:
    out, first, second = action
    if second is None:
        return [tape.COPY, out.data_ptr(), first.data_ptr(), out.nbytes]
    return [tape.COMBINE, out.data_ptr(), first.data_ptr(), second.data_ptr(), out.numel()]
