"""A rank's program of messages: `lower` makes it, `prove_messages` proves it, and a `TapeWriter` puts it on a tape.

Its rows are of four kinds, in the order in which they are done:

    POST m   the carrier may write message m into its places
    SEND m   message m leaves; the carrier may read it until its receiver has taken it
    TAKE m   wait until message m is there
    MOVE w   combine or copy values into one slot

Only TAKE waits, and it waits for the same message at any timing: so a program always ends with the same values.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from ...schedule import Schedule, X, Y
from ...schedule.contract import Slot

POST, SEND, TAKE, MOVE = range(4)

GIVEN, KEPT, FINAL = range(3)
"""The memory of a slot's value. GIVEN: the input, until the slot is written. KEPT: intermediate values. FINAL: results,
for a last value that depends on all ranks: when it is written, all ranks are known to have begun.
"""


class ChunkPlace(NamedTuple):
    """A place for one chunk: the number of the buffer (X, Y or T), the chunk, and GIVEN, KEPT or FINAL."""

    buffer: int
    chunk: int
    where: int


def memory_of(schedule: Schedule, slot: Slot) -> Slot:
    """The slot that stands for this slot's memory. Two slots that have the same one may be the same memory.

    In a call in place, a chunk of the result (buffer Y) is the same memory as the chunk of the input (buffer X). This
    is also so if a rank's own block is a part of the larger tensor. An all_to_all is never in place.
    """
    rank, buffer, chunk = slot
    if buffer == Y == schedule.result and schedule.collective != "all_to_all":
        return rank, X, chunk
    return slot


class Piece(NamedTuple):
    """A part of a received message: the number of the message in the program, and the number of the part in it."""

    message: int
    part: int


class MessageRow(NamedTuple):
    """A row: POST, SEND, TAKE or MOVE, and the number of the message or of the writing."""

    kind: int
    number: int


class TableMessage(NamedTuple):
    """A message as one of its two ranks sees it: all that one rank sends to another in one round.

    peer: the other rank of the table.
    places: what it is read from, or where it arrives, in order.
    runs: where each part begins, and the end of the last. The chunks of a part are neighbours at both ends.
    copied: all its slots become copies of it, so it may arrive straight in them.
    direct: this side needs no copy.
    """

    round: int
    peer: int
    places: tuple[ChunkPlace, ...]
    runs: tuple[int, ...]
    copied: bool
    direct: bool


class Writing(NamedTuple):
    """One write: a copy of the only source, or the combination of all sources, which are in rank order."""

    round: int
    place: ChunkPlace
    sources: tuple[ChunkPlace | Piece, ...]


class MessageProgram(NamedTuple):
    """The program of one rank.

    ends: (buffer, chunk) -> KEPT or FINAL: where the slots of X and Y that this rank writes are in the end.
    """

    rank: int
    messages: tuple[TableMessage, ...]
    writings: tuple[Writing, ...]
    rows: tuple[MessageRow, ...]
    ends: dict[tuple[int, int], int]

    def round_of(self, row: MessageRow) -> int:
        return (self.writings if row.kind == MOVE else self.messages)[row.number].round

    def steps(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """The rows as they are done: kind, round and numbers. Writes that follow each other in a round are one step."""
        for (kind, round_), rows in groupby(self.rows, key=lambda row: (row.kind, self.round_of(row))):
            numbers = tuple(number for _, number in rows)
            yield from [(kind, round_, numbers)] if kind == MOVE else [(kind, round_, (number,)) for number in numbers]
