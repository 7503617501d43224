"""The rows of a program as rows of a tape, which compiled code runs; see `engine.tape`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ...base.errors import InternalError
from ...engine import tape
from ...engine.tape import ROW_BYTES
from .message_memory import NO_WIRE, Action, Memory, Wire
from .message_program import MOVE, POST, SEND, MessageProgram
from .persistent_receives import ReceiveBuffer

_SPREAD = 0x9E3779B1


class TapeRow(NamedTuple):
    """A row of a tape.

    kind: see `engine.tape`.
    words: its words after the kind, but for the last ones that are 0.
    step: the number of the step of the program whose part it is.
    peer: the rank of the world at the other side of its message; -1: it is a copy or a combination.
    round: of its message.
    wire: its message in memory.
    payload: the number of the payload that it posts or sends; -1: none.
    tag: of this payload, if it is the same in all calls; else -1.
    posts: the POSTs of a TAKE.
    """

    kind: int
    words: Sequence[int]
    step: int
    peer: int = -1
    round: int = -1
    wire: Wire = NO_WIRE
    payload: int = -1
    tag: int = -1
    posts: range = range(0)

    @property
    def line(self) -> list[int]:
        """All words."""
        return [self.kind, *self.words, *[0] * (tape.STEP - 1 - len(self.words)), self.step]


def tape_rows(
    program: MessageProgram,
    memory: Memory,
    peers: Sequence[int],
    item: int,
    tag: Callable[[int, int], int] | None,
    receive_buffer: Callable[[int, int, int], ReceiveBuffer] | None,
    first: int,
) -> list[TapeRow]:
    """The rows of a program in memory.

    peers: for each rank of the table its rank in the world.
    item: the bytes of an element; 0 for tables that only copy.
    tag: (round, bytes) -> the tag of a short message, if it is the same in all calls.
    receive_buffer: (peer, round, bytes) -> where such a message arrives.
    first: the number of the first step.
    """
    rows: list[TapeRow] = []
    wires: dict[int, Wire] = {}
    posts: dict[int, range] = {}
    for step, (kind, round_, numbers) in enumerate(program.steps(), first):
        if kind == MOVE:
            actions = memory.actions([program.writings[number] for number in numbers], wires)
            rows += [TapeRow(*_words(action, item), step) for action in actions]
            continue
        number = numbers[0]
        peer, is_sent = peers[program.messages[number].peer], kind == SEND
        lands = partial(receive_buffer, peer, round_) if receive_buffer else None
        wire = wires.get(number) or memory.wire(program.messages[number], leaves=is_sent, receive_buffer=lands)
        wires[number] = wire
        rows += [TapeRow(*_words(action, item), step) for action in wire.packing]
        if kind not in (POST, SEND):
            of = posts[number]
            taken = wire.watched[0], wire.missing, of.start * ROW_BYTES, len(of)
            rows.append(TapeRow(tape.TAKE, taken, step, peer, round_, wire, posts=of))
            continue
        posts[number] = range(len(rows), len(rows) + len(wire.payloads))
        fixed = tag(round_, wire.payloads[0].nbytes) if tag is not None and wire.short else -1
        buffer = wire.receive_buffer
        for index, payload in enumerate(wire.payloads):
            marks = index == len(wire.payloads) - 1 and (wire.marked if is_sent else buffer is None)
            place, posted = (payload.data_ptr(), payload.nbytes), buffer.posted if buffer else 0
            words = wire.watched[0] if marks else 0, *place, posted, wire.missing
            rows.append(TapeRow(tape.SEND if is_sent else tape.POST, words, step, peer, round_, wire, index, fixed))
    return rows


def _words(action: Action, item: int) -> tuple[int, tuple[int, ...]]:
    """The kind and the words of a COPY or of a COMBINE."""
    out, *sources = action
    if len(sources) == 1:
        return tape.COPY, (out.start, sources[0].start, out.nbytes)
    if not item:
        raise InternalError("a table combines chunks, and the caller has not said how")
    return tape.COMBINE, (out.start, *(source.start for source in sources), out.nbytes // item)


def sized(tag: int, nbytes: int, tags: int) -> int:
    """A tag of the lower half; the upper half is for messages from rank to rank. The tag has the size in it: messages
    and receives of different sizes do not meet.
    """
    return (tag + nbytes * _SPREAD) % (tags // 2)
