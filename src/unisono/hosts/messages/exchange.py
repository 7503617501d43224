"""Run a rank's program of messages over a carrier, and log its steps for traces."""

from collections.abc import Callable, Iterator, Sequence

import torch

from ...base.errors import InternalError
from ...engine.carrier import Carrier, Handle
from ..carriers.waiter import CarrierWaiter, Settling, settle_apart
from .journal import Journal
from .leg_tape import BoundRow, LegTape, sized
from .message_memory import Buffers, Memory, Wire
from .message_program import MOVE, SEND, MessageProgram
from .persistent_receives import ReceiveBuffer, ReceiveBuffers

_BUFFERS = Buffers()
_SETTLER = CarrierWaiter()


class Exchange:
    """A rank's part in a table, as messages: a state machine that never waits.

    carrier: moves the messages.
    program: what this rank does.
    peers: for each rank of the table its rank in the world.
    chunks: a flat tensor for each chunk of buffer X; none for a table without data, such as a barrier.
    combine: the address of the combine kernel, see `engine.reducers`; 0 for tables that only copy.
    number: the number of the call, from 1.
    tag: (number, round, index) -> the tag of a message. The index counts the messages from one rank to another in a
    round. No other call may have the tag.
    y: the chunks of buffer Y, for tables that use it.
    t: the elements of each chunk of buffer T; by default as in X.
    persistent: round -> the tag of a short message from one rank to another, if it is the same in all calls of a kind.
    Only one such call is made at a time. If the carrier has a thread, receives of these messages are persistent, too.
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
        combine: int,
        number: int,
        tag: Callable[[int, int, int], int],
        *,
        persistent: Callable[[int], int] | None = None,
        journal: Journal | None = None,
        y: Sequence[torch.Tensor] = (),
        t: Sequence[int] = (),
        given: Sequence[torch.Tensor] | None = None,
        final: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self._carrier, self._program = carrier, program
        self._persistent = persistent
        self._buffers = ReceiveBuffers.of(carrier) if persistent is not None and carrier.own_thread else None
        self._peers = [peers[message.peer] for message in program.messages]
        self._memory = Memory(_BUFFERS, chunks, y, t, given, final)
        self._receive_buffers: list[ReceiveBuffer] = []
        self._lends: list[int] = []
        """The peers to which messages leave straight from places, in order."""
        self._settling: Settling | None = None
        self._awaited: tuple[list[Handle], Settling] | None = None
        self.done, self.waiting_for = False, -1
        self._news: Callable[[], object] = _nothing
        self._tape = LegTape(carrier, [*self._rows(combine)], combine, tag, journal)
        self._tape.begin(number)

    def again(self, number: int) -> None:
        """Start again with the same places, for the call of this number. This takes less time than a new exchange.

        Messages of the last run have arrived: there was a call in between, and its end told that all ranks had started.
        """
        for handle in self._tape.sends:
            handle.settle()
        self._tape.begin(number)
        self._settling = self._awaited = None
        self.done, self.waiting_for = False, -1

    def advance(self) -> bool:
        """Start and take in all messages that are ready; True when all is done. Never waits. Raises Lost.

        While it is not done, `waiting_for` is the rank of the world whose message is missing.
        """
        carrier = self._carrier
        if not self._tape.run():
            self.waiting_for = self._tape.place.row.peer
            if self._buffers is not None:
                self._buffers.post_used(carrier)
            if not carrier.own_thread and carrier.compiled is None:
                carrier.progress()
            return False
        if self._buffers is not None:
            for buffer in self._receive_buffers:
                self._buffers.has_used(buffer)
        self.done, self.waiting_for = True, -1
        if self._tape.sends and not carrier.own_thread:
            self._settling = _SETTLER.settle(self._tape.sends)  # a thread that waits for messages lets them go on
        return True

    def write_down(self, began: int) -> None:
        """If this is traced, log that this rank has been at its current step since `began`, in cycles, until now."""
        if self._tape.logs and not self.done:
            self._tape.write_down(began)

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
        return None if self.done or not looks else self._tape.place.row.wire.watched

    def wake(self, news: Callable[[], object]) -> bool:
        """Let another thread call `news` when the missing message has come, or when all is sent.

        False if no thread will: the carrier has no thread of its own, or a connection is lost.
        """
        if not self._carrier.own_thread:
            return False
        if self.done:
            self._news = news
            return self.is_under_way
        awaited = self._tape.awaited()
        if self._awaited is None or self._awaited[0] != awaited:
            self._awaited = awaited, settle_apart(awaited, news)
        return self._awaited[1].error is None

    def finish_sends(self) -> bool:
        """Whether the carrier has read all messages that it sends from places, so that the places may be written.

        Never waits. The first call that finds a message under way lets a thread wait for it. Short messages are sent
        from copies: with only these, it is true as soon as all is done. Raises Lost. While it is false, `waiting_for`
        is the rank of the world that receives the last message.
        """
        if not self._lends or not self._tape.sends:
            return True
        if self._settling is None:
            self._settling = settle_apart(self._tape.sends, self._tell)
        if self._settling.error:
            raise self._settling.error
        self.waiting_for = -1 if self._settling.over else self._lends[-1]
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
        self._tape.close()
        if self._tape.sends:
            _SETTLER.settle(self._tape.sends if self._settling is None else (), self._give_back)
        else:
            self._give_back()

    def _give_back(self) -> None:
        if self._settling is None or (self._settling.over and self._settling.error is None):
            taken, self._memory.taken = self._memory.taken, []
            _BUFFERS.give(taken)
        else:
            self._carrier.give_up(self._tape.sends)

    def give_up(self) -> None:
        """Leave the exchange as it is, for good. Messages may still arrive in its memory and leave it: the carrier
        keeps the memory.
        """
        self._carrier.give_up(self._tape.take_back())
        self._tape.close()
        if self._settling is not None and not self._settling.over:
            _SETTLER.replace()

    def _rows(self, combine: int) -> Iterator[BoundRow]:
        """The rows of the program in memory."""
        program, memory, wires = self._program, self._memory, dict[int, Wire]()
        for kind, round_, numbers in program.steps():
            if kind == MOVE:
                actions = memory.actions([program.writings[n] for n in numbers], wires)
                if not combine and any(action.second is not None for action in actions):
                    raise InternalError("a table combines chunks, and the caller has not said how")
                yield BoundRow(MOVE, actions)
                continue
            number = numbers[0]
            peer, wire = self._peers[number], wires.get(number)
            if wire is None:
                finds = self._receive_buffer(number)
                wire = memory.wire(program.messages[number], leaves=kind == SEND, receive_buffer=finds)
                wires[number] = wire
            self._lends += [peer] if kind == SEND and wire.straight else []
            fixed = -1
            if self._persistent is not None and wire.short:
                fixed = sized(self._persistent(round_), wire.payloads[0].numel(), self._carrier.tags)
            yield BoundRow(kind, wire.packing, number, peer, round_, wire, fixed)

    def _receive_buffer(self, number: int) -> Callable[[int], ReceiveBuffer] | None:
        """Where this message arrives, for any size."""
        persistent, buffers, tags = self._persistent, self._buffers, self._carrier.tags
        peer, round_ = self._peers[number], self._program.messages[number].round
        if persistent is None or buffers is None:
            return None

        def find(nbytes: int) -> ReceiveBuffer:
            found = buffers.at(peer, sized(persistent(round_), nbytes, tags), nbytes)
            self._receive_buffers.append(found)
            return found

        return find


def _nothing() -> None:
    pass
