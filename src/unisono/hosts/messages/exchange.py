"""Run a rank's program of messages over a carrier, and log its steps for traces."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch

from ...base.errors import InternalError
from ...engine.carrier import Carrier, Handle
from ...engine.clock import read_cycles
from ...engine.logs.rank_logs import LoggedRow
from ..carriers.waiter import CarrierWaiter, Settling, settle_apart
from .journal import Journal
from .leg_tape import BoundRow, LegTape
from .message_memory import Action, Buffers, Memory, Wire
from .message_program import MOVE, POST, SEND, TAKE, MessageProgram
from .persistent_receives import PersistentReceive, ReceiveBuffer

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""combine(out, a, b): out = a op b, where out may be a or b, and a is from lower ranks than b."""

_BUFFERS = Buffers()
_SETTLER = CarrierWaiter()

_SPREAD = 0x9E3779B1


class _Bound(NamedTuple):
    """The rows of a program with their memory. tape: the same for compiled code."""

    rows: list[BoundRow]
    tape: LegTape | None


class Exchange:
    """A rank's part in a table, as messages: a state machine that never waits.

    carrier: moves the messages.
    program: what this rank does.
    peers: for each rank of the table its rank in the world.
    chunks: a flat tensor for each chunk of buffer X; none for a table without data, such as a barrier.
    combine: see `Combine`; None for tables that only copy.
    kernel: the address of compiled code that combines as `combine` does; 0: there is none.
    number: the number of the call, from 1.
    tag: (number, round, index) -> the tag of a message. The index counts the messages from one rank to another in a
    round. No other call may have the tag.
    y: the chunks of buffer Y, for tables that use it.
    t: the elements of each chunk of buffer T; by default as in X.
    persistent: how short messages arrive, if not in receives of this call with tags of its own.
    journal: where its steps are logged.
    given: where the input is, if not in `chunks`. It is only read.
    final: where final values of the table's result buffer go, if all ranks are known to have begun, because the value
    depends on all of them. `program.ends` lists these chunks; other values are in `chunks` or `y`.

    The carrier only reads `given` and `final`: a message that arrives late, for an exchange that has been given up,
    does no harm there.
    """

    def __init__(
        self,
        carrier: Carrier,
        program: MessageProgram,
        peers: Sequence[int],
        chunks: Sequence[torch.Tensor],
        combine: Combine | None,
        number: int,
        tag: Callable[[int, int, int], int],
        *,
        kernel: int = 0,
        persistent: PersistentReceive | None = None,
        journal: Journal | None = None,
        y: Sequence[torch.Tensor] = (),
        t: Sequence[int] = (),
        given: Sequence[torch.Tensor] | None = None,
        final: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self._carrier, self._program, self._number, self._tag = carrier, program, number, tag
        self._persistent, self._journal = persistent, journal
        self._buffers = persistent.buffers if persistent is not None else None
        self._combine, self._kernel = combine or _no_combine, kernel
        self._peers = [peers[message.peer] for message in program.messages]
        self._memory = Memory(_BUFFERS, chunks, y, t, given, final)
        self._wires: dict[int, Wire] = {}
        self._receive_buffers: list[ReceiveBuffer] = []
        self._lends = False
        self._settling: Settling | None = None
        self._awaited: tuple[int, Settling] | None = None
        self._bound, self._other_bound = self._bind(), _Bound([], None)
        self._receives: dict[int, list[Handle]] = {}
        self._sends: list[Handle] = []
        self._earlier_sends: list[Handle] = []
        self._news: Callable[[], object] = _nothing
        self._start()

    def again(self, number: int) -> None:
        """Start again with the same places, for the call of this number. This takes less time than a new exchange.

        The last run is done. Messages of the run before it are over: there was a call in between, and its end told that
        all ranks had started.
        """
        for handle in self._earlier_sends:
            handle.settle()
        self._sends, self._earlier_sends = [], [] if self._settling else self._sends
        self._bound, self._other_bound = self._other_bound if self._other_bound.rows else self._bind(), self._bound
        self._number = number
        self._start()

    def advance(self) -> bool:
        """Start and take in all messages that are ready; True when all is done. Never waits. Raises Lost.

        While it is not done, `waiting_for` is the rank of the world whose message is missing.
        """
        rows, carrier = self._rows, self._carrier
        if self._tape is not None:
            return self._replay(self._tape)
        while self._at < len(rows):
            kind, _, deeds, number, peer, round_, wire, tags = rows[self._at]
            if kind == TAKE:
                if wire.word[0] == wire.missing:
                    self.waiting_for = peer
                    if self._buffers is not None:
                        self._buffers.post_used(carrier)
                    carrier.progress()
                    return False
                if wire.receive_buffer is None:
                    for handle in self._receives.pop(number):
                        handle.settle()
                    if tags and wire.word[0] != self._number:  # the message was for a call that has failed
                        self._post(number, peer, wire, tags)
                        continue
                elif not wire.receive_buffer.take(self._number):  # the message was for a call that has failed
                    wire.receive_buffer.post(carrier)
                    self._awaited = None
                    continue
            elif kind == POST and wire.receive_buffer is not None:
                wire.receive_buffer.post(carrier)
            elif kind == POST:
                self._post(number, peer, wire, tags or self._tags(round_, wire))
            else:
                began = read_cycles() if self._writer else 0
                for deed in deeds:
                    deed()
                if kind == SEND:
                    if wire.marked:
                        wire.word[0] = self._number
                    mails = zip(tags or self._tags(round_, wire), wire.payloads, strict=True)
                    self._sends += [carrier.isend(peer, *mail) for mail in mails]
                if began and (deeds or kind == SEND):
                    self.write_down(began)
            self._at += 1
        if self._buffers is not None:
            for buffer in self._receive_buffers:
                self._buffers.has_used(buffer)
        self._finish(carrier.pending(self._sends))
        return True

    def _post(self, number: int, peer: int, wire: Wire, tags: Sequence[int]) -> None:
        wire.word[0] = wire.missing
        mails = zip(tags, wire.payloads, strict=True)
        self._receives[number] = [self._carrier.irecv(peer, *mail) for mail in mails]

    def _replay(self, tape: LegTape) -> bool:
        """Let compiled code do the same."""
        if tape.run():
            self._finish(tape.take_back() if tape.is_sending else [])
            return True
        self._at = tape.at
        self.waiting_for = self._rows[self._at].peer
        return False

    def _finish(self, sends: list[Handle]) -> None:
        """All rows are done. sends: the messages that the carrier may still read."""
        self.done, self.waiting_for, self._sends = True, -1, sends
        if sends and not self._carrier.own_thread and self._settling is None:
            self._settling = _SETTLER.settle(sends)  # a thread that waits for messages lets them go on

    def write_down(self, began: int) -> None:
        """If this is traced, log that this rank has been at its current step since `began`, in cycles, until now."""
        if self._writer is not None and self._journal is not None and not self.done:
            segment, row = self._journal.segment, self._journal.first + self._at
            self._writer.write(LoggedRow(self._number, segment, row, began, read_cycles()))

    @property
    def nbytes(self) -> int:
        """The bytes of its memory for messages."""
        return sum(buffer.numel() for buffer in self._memory.taken)

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
        return None if self.done or not looks else self._rows[self._at].wire.watched

    def wake(self, news: Callable[[], object]) -> bool:
        """Let another thread call `news` when the missing message has come, or when all is sent.

        False if no thread will: the carrier has no thread of its own, or a connection is lost.
        """
        if not self._carrier.own_thread:
            return False
        if self.done:
            self._news = news
            return self.is_under_way
        if self._awaited is None or self._awaited[0] != self._at:
            row = self._rows[self._at]
            buffer = row.wire.receive_buffer
            handles = [buffer.handle] if buffer and buffer.handle else list(self._receives[row.number])
            self._awaited = self._at, settle_apart(handles, news)
        return self._awaited[1].error is None

    def finish_sends(self) -> bool:
        """Whether the carrier has read all messages that it sends from places, so that the places may be written.

        Never waits. The first call that finds a message under way lets a thread wait for it. Short messages are sent
        from copies: with only these, it is true as soon as all is done. Raises Lost. While it is false, `waiting_for`
        is the rank of the world that receives the last message.
        """
        if not self._lends or not self._sends:
            return True
        if self._settling is None:
            self._settling = settle_apart(self._sends, self._tell)
        if self._settling.error:
            raise self._settling.error
        if self._settling.over:
            self._sends = []
        else:
            self.waiting_for = next(row.peer for row in reversed(self._rows) if row.kind == SEND)
        return self._settling.over

    def _tell(self) -> None:
        self._news()

    def close(self) -> None:
        """Give the memory back, at once or when the last message has left. Give up the exchange if it is not done."""
        if not self.done:
            self.give_up()
            return
        if self._buffers is not None:
            for buffer in self._receive_buffers:
                self._buffers.give_back(buffer)
        self._close_tapes()
        handles = [*self._earlier_sends, *(self._sends if self._settling is None else ())]
        if handles or self._settling:
            _SETTLER.settle(handles, self._give_back)
        else:
            self._give_back()

    def _give_back(self) -> None:
        if self._settling is None or (self._settling.over and self._settling.error is None):
            taken, self._memory.taken = self._memory.taken, []
            _BUFFERS.give(taken)
        else:
            self._carrier.give_up(self._sends)

    def give_up(self) -> None:
        """Leave the exchange as it is, for good. Messages may still arrive in its memory and leave it: the carrier
        keeps the memory.
        """
        left = self._tape.take_back() if self._tape is not None else []
        self._carrier.give_up([*left, *self._earlier_sends, *self._sends, *chain(*self._receives.values())])
        self._close_tapes()
        if self._settling is not None and not self._settling.over:
            _SETTLER.replace()

    def _close_tapes(self) -> None:
        for _, tape in (self._bound, self._other_bound):
            if tape is not None:
                tape.close()

    def _start(self) -> None:
        self._at = 0
        self._writer = self._journal.writer() if self._journal else None
        self._rows, self._tape = self._bound
        if self._writer is not None:
            self._tape = None  # which logs no steps
        elif self._tape is not None:
            self._tape.begin(self._number)
        self._settling = self._awaited = None
        self.done = False
        self.waiting_for = -1

    def _bind(self) -> _Bound:
        """The rows in memory. Each run has its own memory for messages that leave: the last run's may still be read."""
        program, memory, wires = self._program, self._memory, self._wires
        rows: list[BoundRow] = []
        for kind, round_, numbers in program.steps():
            if kind == MOVE:
                actions = memory.actions([program.writings[n] for n in numbers], wires)
                rows.append(BoundRow(MOVE, actions, self._ready(actions)))
                continue
            number = numbers[0]
            peer, wire = self._peers[number], wires.get(number)
            if kind == SEND or wire is None:
                finds = self._receive_buffer(number)
                wire = wires[number] = memory.wire(program.messages[number], leaves=kind == SEND, receive_buffer=finds)
            tags = self._persistent_tags(round_, wire)
            self._lends |= kind == SEND and wire.straight
            rows.append(BoundRow(kind, wire.packing, self._ready(wire.packing), number, peer, round_, wire, tags))
        return _Bound(rows, self._tape_of(rows))

    def _tape_of(self, rows: Sequence[BoundRow]) -> LegTape | None:
        """The rows as a tape, if the carrier can run it, and messages have the same tags in all calls."""
        compiled, messages = self._carrier.compiled, [row for row in rows if row.kind != MOVE]
        if compiled is None or not messages or not all(row.tags for row in messages):
            return None
        if not self._kernel and any(action.second is not None for row in rows for action in row.actions):
            return None
        return LegTape(compiled, rows, self._kernel)

    def _ready(self, actions: Iterable[Action]) -> list[Callable[[], object]]:
        """Functions that make these actions, in memory of this exchange."""
        return [
            partial(ctypes.memmove, out.data_ptr(), first.data_ptr(), out.nbytes)
            if second is None
            else partial(self._combine, out, first, second)
            for out, first, second in actions
        ]

    def _tags(self, round_: int, wire: Wire) -> Sequence[int]:
        """The tags of a message's payloads. No other call has them."""
        tags = [self._tag(self._number, round_, n) for n in range(len(wire.payloads))]
        return [self._sized(tag, payload.numel()) for tag, payload in zip(tags, wire.payloads, strict=True)]

    def _persistent_tags(self, round_: int, wire: Wire) -> tuple[int, ...]:
        if self._persistent is None or not wire.short:
            return ()
        return (self._sized(self._persistent.tag(round_), wire.payloads[0].numel()),)

    def _receive_buffer(self, number: int) -> Callable[[int], ReceiveBuffer] | None:
        """Where this message arrives, for any size."""
        persistent, peer, round_ = self._persistent, self._peers[number], self._program.messages[number].round
        if persistent is None or persistent.buffers is None:
            return None
        buffers = persistent.buffers

        def find(nbytes: int) -> ReceiveBuffer:
            found = buffers.at(peer, self._sized(persistent.tag(round_), nbytes), nbytes)
            self._receive_buffers.append(found)
            return found

        return find

    def _sized(self, tag: int, nbytes: int) -> int:
        """A tag of the lower half; the upper half is for messages from rank to rank. The tag has the size in it:
        messages and receives of different sizes do not meet.
        """
        return (tag + nbytes * _SPREAD) % (self._carrier.tags // 2)


def _nothing() -> None:
    pass


def _no_combine(*_: torch.Tensor) -> None:
    raise InternalError("a table combines chunks, and the caller has not said how")
