"""A rank's program of messages: what `lower` makes of a table, `prove_messages` proves and an `Exchange` runs.

Its rows are four kinds of deeds, in the order in which they are done:

    POST m   the carrier may write what message m brings
    SEND m   message m leaves; the carrier may read it until it has been taken by its receiver
    TAKE m   wait until message m is there
    MOVE w   combine or copy what is there into one slot

Only TAKE waits, and what it waits for does not depend on time: a program ends with the same values at any timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ...schedule import Schedule, X, Y
from ...schedule.contract import Slot

POST, SEND, TAKE, MOVE = range(4)

GIVEN, KEPT, FINAL = range(3)
"""Which memory a slot's value is in: that of the input, until the slot is written; that of intermediate values; that of
the results, for a last value that depends on all ranks: wherever it is written, all ranks are known to have begun."""


class ChunkPlace(NamedTuple):
    """A place for one chunk: the number of the buffer (X, Y or T), the chunk, and GIVEN, KEPT or FINAL."""

    buffer: int
    chunk: int
    where: int


def memory_of(schedule: Schedule, slot: Slot) -> Slot:
    """The slot that stands for the memory of this one: two slots with the same may be one memory.

    In a call in place, a chunk of the result (buffer Y) is the same memory as that chunk of the input (buffer X). So it
    is where a rank's own block is a part of the larger tensor. An all_to_all is never in place.
    """
    rank, buffer, chunk = slot
    if buffer == Y == schedule.result and schedule.collective != "all_to_all":
        return rank, X, chunk
    return slot


class Piece(NamedTuple):
    """What a received message has at one place: the number of the message among the program's, and the place."""

    parcel: int
    place: int


class MessageRow(NamedTuple):
    """A row: POST, SEND, TAKE or MOVE, and the number of the parcel or of the writing."""

    kind: int
    number: int


@dataclass(frozen=True)
class TableMessage:
    """A message as one of its two ranks sees it: all that one rank sends to another in one round.

    peer: the other rank of the table. spots: what is sent, or where it goes, in order. runs: where the parts begin of
    which the chunks are neighbours at both ends, and the end of the last. copied: all of it is for slots that become
    copies of it, so it may arrive straight in them. direct: this side may do without a copy.
    """

    round: int
    peer: int
    spots: tuple[ChunkPlace, ...]
    runs: tuple[int, ...]
    copied: bool
    direct: bool


@dataclass(frozen=True)
class Writing:
    """One write: a copy of the only source, or the combination of all sources, which are in rank order."""

    round: int
    spot: ChunkPlace
    sources: tuple[ChunkPlace | Piece, ...]


@dataclass(frozen=True)
class MessageProgram:
    """What one rank does. ranks: their number in the table. rounds: the number of the table's rounds.

    ends: where the slots of buffers X and Y that this rank writes are in the end, by (buffer, chunk): KEPT or FINAL.
    """

    rank: int
    ranks: int
    chunks: int
    rounds: int
    parcels: tuple[TableMessage, ...]
    writings: tuple[Writing, ...]
    rows: tuple[MessageRow, ...]
    ends: dict[tuple[int, int], int]

    def round_of(self, deed: MessageRow) -> int:
        """The round of what a deed is about."""
        return (self.writings if deed.kind == MOVE else self.parcels)[deed.number].round

    def steps(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """The rows as they are done: kind, round and numbers. Writes that follow each other in a round are one step."""
        for (kind, round_), deeds in groupby(self.rows, key=lambda deed: (deed.kind, self.round_of(deed))):
            numbers = tuple(number for _, number in deeds)
            yield from [(kind, round_, numbers)] if kind == MOVE else [(kind, round_, (number,)) for number in numbers]
