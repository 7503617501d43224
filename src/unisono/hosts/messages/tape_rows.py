"""The rows of a rank's program as rows of a tape, which compiled code runs; see `engine.tape`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ...base.errors import InternalError
from ...engine import tape
from ...engine.carrier import Carrier
from ...engine.tape import ROW_BYTES
from .message_memory import NO_WIRE, Action, Bytes, Memory, Room, Wire
from .message_program import MOVE, SEND, TAKE, ChunkPlace, MessageProgram

_SPREAD = 0x9E3779B1

BEGIN = -1
"""The turn of rows that wait for no message."""


class TapeRow(NamedTuple):
    """A row of a tape.

    kind: see `engine.tape`.
    words: its words after the kind, but for the last ones that are 0.
    piece: the piece of the vector that it moves; -1: none.
    turn: rows of a call are done in this order. A message is sent in an earlier turn than it is taken.
    peer: the rank of the world at the other side of its message; -1: it has none.
    wire: its message in memory.
    payload: the number of the payload that it posts or sends; -1: none.
    tag: of this payload, if it is the same in all calls; else -1.
    tag_of: number of the call -> the tag of this payload.
    """

    kind: int
    words: Sequence[int]
    piece: int = -1
    turn: int = BEGIN
    peer: int = -1
    wire: Wire = NO_WIRE
    payload: int = -1
    tag: int = -1
    tag_of: Callable[[int], int] = int

    def line(self, post: int) -> list[int]:
        """All words. post: the place of a TAKE's first POST on the tape."""
        words = [*self.words, post * ROW_BYTES, len(self.wire.payloads)] if self.kind == tape.TAKE else self.words
        return [self.kind, *words, *[0] * (ROW_BYTES // 8 - 1 - len(words))]


class Tags(NamedTuple):
    """The tags of a program's messages. No other messages may have them.

    of_call: (number of the call, round, index) -> a tag. The index counts the messages from one rank to another in a
    round.
    of_kind: round -> the tag of a short message from one rank to another, if it is the same in all calls of a kind.
    Only one such call is made at a time.
    """

    of_call: Callable[[int, int, int], int]
    of_kind: Callable[[int], int] | None = None


class TapeWriter:
    """Writes rows of one tape.

    carrier: moves its messages.
    room: where messages are packed and arrive.
    combine: the address of the combine kernel, see `engine.reducers`, and the bytes of an element; None for tables that
    only copy.
    """

    def __init__(self, carrier: Carrier, room: Room, combine: tuple[int, int] | None) -> None:
        self._carrier, self._room = carrier, room
        self._kernel, self._item = combine or (0, 0)

    def leg(
        self,
        program: MessageProgram,
        peers: Sequence[int],
        places: Mapping[ChunkPlace, Bytes],
        tags: Tags,
        *,
        piece: int = 0,
    ) -> Iterator[TapeRow]:
        """The rows of a program in memory.

        peers: for each rank of the table its rank in the world.
        places: see `Memory`. The carrier only reads places that are GIVEN or FINAL: a message that arrives late, for a
        call that has been given up, does no harm there.
        piece: of the vector. It has its turns one behind those of the piece before.
        """
        memory, wires, turn = Memory(places, self._room), dict[int, Wire](), BEGIN
        for kind, round_, numbers in program.steps():
            turn = _turn(turn, kind, round_)
            at = piece, turn if turn == BEGIN else turn + 2 * piece
            if kind == MOVE:
                actions = memory.actions([program.writings[number] for number in numbers], wires)
                yield from (self._action(action, *at) for action in actions)
                continue
            message = program.messages[numbers[0]]
            peer, is_sent = peers[message.peer], kind == SEND
            wire = wires.get(numbers[0])
            if wire is None:
                wire = wires[numbers[0]] = memory.wire(message, leaves=is_sent)
            yield from (self._action(action, *at) for action in wire.packing)
            if kind == TAKE:
                yield TapeRow(tape.TAKE, wire.watched, *at, peer, wire)
                continue
            for index, payload in enumerate(wire.payloads):
                marks = index == len(wire.payloads) - 1 and (wire.marked or not is_sent)
                words = wire.watched[0] if marks else 0, payload.data_ptr(), payload.nbytes, 0, wire.missing
                tag = self._sized(tags.of_kind(round_), payload.nbytes) if wire.short and tags.of_kind else -1
                tag_of = partial(self._tag, tags, round_, index, payload.nbytes)
                yield TapeRow(tape.SEND if is_sent else tape.POST, words, *at, peer, wire, index, tag, tag_of)

    def _tag(self, tags: Tags, round_: int, index: int, nbytes: int, number: int) -> int:
        return self._sized(tags.of_call(number, round_, index), nbytes)

    def _sized(self, tag: int, nbytes: int) -> int:
        """A tag of the lower half; the upper half is for messages from rank to rank. The tag has the size in it:
        messages and receives of different sizes do not meet.
        """
        return (tag + nbytes * _SPREAD) % (self._carrier.tags // 2)

    def _action(self, action: Action, piece: int, turn: int) -> TapeRow:
        """A COPY or a COMBINE."""
        out, *sources = action
        if len(sources) == 1:
            return TapeRow(tape.COPY, (out.start, sources[0].start, out.nbytes), piece, turn)
        if not self._item:
            raise InternalError("a table combines chunks, and the caller has not said how")
        starts = (source.start for source in sources)
        return TapeRow(tape.COMBINE, (out.start, *starts, out.nbytes // self._item, self._kernel, 1), piece, turn)


def _turn(last: int, kind: int, round_: int) -> int:
    """The turn of a step: of each round, first what is sent, then what is taken. last: of the step before."""
    if kind in (TAKE, MOVE):
        return max(last, 2 * round_ + 1)
    if last == BEGIN:
        return BEGIN
    return max(last, 2 * round_) if kind == SEND else last + last % 2
