"""From a table to the messages of each rank: all rows of one round from one rank to another are one message.

A message may leave straight from its places, and arrive straight in them, if at no timing another use of the places
comes between; else it is copied. The content of a slot is a *version*; each write makes a new one. The versions of a
slot lie in up to three places (see GIVEN, KEPT and FINAL). This file treats the three as one, because the caller's
tensors may overlap in this way. For the same reason, a chunk of the result counts as the same memory as the chunk of
the input, see `memory_of`.

When all ranks are known to have begun follows from the messages alone, at any timing. `clock[r, q]` counts what rank r
knows of rank q: 0 is nothing, k + 1 that q has begun and has done its first k rounds. A rank does a round when it has
taken the round's messages. A message carries its sender's clock from before the round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...base.errors import ProgramError
from ...schedule import Move, Schedule, T, X, moves
from ...schedule.contract import Slot
from .message_program import (
    FINAL,
    GIVEN,
    KEPT,
    MOVE,
    POST,
    SEND,
    TAKE,
    ChunkPlace,
    MessageProgram,
    MessageRow,
    Piece,
    TableMessage,
    Writing,
    memory_of,
)

Clock = np.ndarray[Any, np.dtype[np.int32]]


def at_start(ranks: int) -> Clock:
    """The clock at the start: every rank knows only that it has begun itself."""
    clock: Clock = np.eye(ranks, dtype=np.int32)
    return clock


def after_round(clock: Clock, done: int, pairs: Iterable[tuple[int, int]]) -> Clock:
    """The clock after a round with messages between these pairs (source, destination); `done` rounds are over then."""
    after: Clock = clock.copy()
    for src, dst in pairs:
        np.maximum(after[dst], clock[src], out=after[dst])
    np.fill_diagonal(after, done + 1)
    return after


class _Letter:
    """A message in the making.

    slots: the slots that are sent, and the slots where they arrive.
    versions: the versions that are sent.
    made: the versions that arrive.
    sole: they are all copies.
    straight_out: it may leave straight from its places.
    straight_in: it may arrive straight in its places.
    post: the first round in which its receive may be posted.
    """

    def __init__(self, round_: int, src: int, dst: int) -> None:
        self.round, self.src, self.dst, self.post = round_, src, dst, 0
        self.slots: list[tuple[Slot, Slot]] = []
        self.versions: list[int] = []
        self.made: dict[Slot, int] = {}
        self.sole = self.straight_out = self.straight_in = True

    def runs(self) -> tuple[int, ...]:
        """Where each part begins, and the end of the last. The chunks of a part are neighbours at both ends."""
        starts = [
            at
            for at, (now, before) in enumerate(zip(self.slots[1:], self.slots, strict=False), 1)
            if any(new[1] != old[1] or new[2] != old[2] + 1 for new, old in zip(now, before, strict=True))
        ]
        return (0, *starts, len(self.slots))


class _Write:
    """A write in the making.

    version: the version that it makes.
    sources: a letter and a place in it, or a slot and its version.
    """

    def __init__(self, slot: Slot, version: int, sources: list[tuple[_Letter | Slot, int]]) -> None:
        self.slot, self.version, self.sources = slot, version, sources

    def slots(self) -> list[Slot]:
        """The slots of its own rank that it reads."""
        return [source for source, _ in self.sources if not isinstance(source, _Letter)]


class _Table:
    """Facts about a table's slots, while `lower` goes through its rounds.

    By slot:
    version: the version that it holds.
    heard: at its last write, all ranks were known to have begun.
    written: the round of its last write.

    By memory:
    used: the round after whose sends a message may be written to it.
    flying: the messages that may still be leaving it, with the slots that they leave.
    read: the last round that reads the input there.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.version: dict[Slot, int] = {}
        self.used: dict[Slot, int] = {}
        self.flying: dict[Slot, list[tuple[_Letter, Slot]]] = {}
        self.heard: dict[Slot, bool] = {}
        self.read: dict[Slot, int] = {}
        self.written: dict[Slot, int] = {}

    def memory(self, slot: Slot) -> Slot:
        """The slot that stands for this slot's memory."""
        return memory_of(self.schedule, slot)

    def where(self, slot: Slot, version: int) -> ChunkPlace:
        """The place of a version, once all rounds have been gone through."""
        _, buffer, chunk = slot
        if version == 0:
            return ChunkPlace(buffer, chunk, GIVEN if buffer == X else KEPT)
        last = version == self.version[slot] and buffer == self.schedule.result and buffer != T
        unread = self.read.get(self.memory(slot), -1) <= self.written[slot]
        return ChunkPlace(buffer, chunk, FINAL if last and unread and self.heard[slot] else KEPT)


def lower(schedule: Schedule) -> tuple[MessageProgram, ...]:
    """The program of every rank of a table. `prove_messages` proves them."""
    table = _Table(schedule)
    letters: list[list[_Letter]] = []
    writes: list[list[_Write]] = []
    clock = at_start(schedule.ranks)
    for k, (_, round_) in enumerate(moves(schedule)):
        sent, written = _round(table, k, round_)
        after = after_round(clock, k + 1, {(letter.src, letter.dst) for letter in sent})
        _arrivals(table, k, sent, written)
        _departures(table, k, sent, written, clock, after)
        letters.append(sent)
        writes.append(written)
        clock = after
    _results(table, clock)
    return tuple(_program(table, rank, letters, writes) for rank in range(schedule.ranks))


def _round(table: _Table, k: int, round_: list[Move]) -> tuple[list[_Letter], list[_Write]]:
    letters: dict[tuple[int, int], _Letter] = {}
    writes = []
    for slot, sources in round_:
        rank = slot[0]
        found: list[tuple[_Letter | Slot, int]] = []
        for source in sources:
            version = table.version.get(source, 0)
            if source[0] == rank:
                found.append((source, version))
                continue
            letter = letters.setdefault((source[0], rank), _Letter(k, source[0], rank))
            found.append((letter, len(letter.slots)))
            letter.slots.append((source, slot))
            letter.versions.append(version)
            letter.made[slot] = table.version.get(slot, 0) + 1
            letter.sole &= len(sources) == 1
        writes.append(_Write(slot, table.version.get(slot, 0) + 1, found))
    return list(letters.values()), _readers_first(table, writes)


def _readers_first(table: _Table, writes: list[_Write]) -> list[_Write]:
    """Order the writes of a round: on one rank, a write that reads a slot comes before a write of the slot."""
    order: list[_Write] = []
    while writes:
        readers = [(table.memory(source), write) for write in writes for source in write.slots()]
        early = {memory for memory, write in readers if memory != table.memory(write.slot)}
        free = [write for write in writes if table.memory(write.slot) not in early]
        if not free:
            raise ProgramError(f"{table.schedule.name}: a rank exchanges chunks with itself in one round; use buffer T")
        order += free
        writes = [write for write in writes if write not in free]
    return order


def _arrivals(table: _Table, k: int, letters: list[_Letter], writes: list[_Write]) -> None:
    """Find the messages that may arrive straight in their places, and from which round on: places without other use."""
    away = [source for letter in letters for source, _ in letter.slots]
    here = [source for write in writes for source in write.slots()]
    sent, read = ({table.memory(source) for source in some} for some in (away, here))
    table.read.update((source, k) for source in (*away, *here) if not table.version.get(source, 0))
    for letter in letters:
        places = [table.memory(slot) for _, slot in letter.slots]
        letter.straight_in = letter.sole and sent.isdisjoint(places) and read.isdisjoint(places)
        if letter.straight_in:
            letter.post = max(table.used.get(place, 0) for place in places)
    table.used.update(dict.fromkeys(sent, k))
    table.used.update(dict.fromkeys(read, k + 1))


def _departures(
    table: _Table, k: int, letters: list[_Letter], writes: list[_Write], clock: Clock, after: Clock
) -> None:
    """Find the messages that cannot leave straight from their places: a write may come before they have left."""
    for letter in letters:
        for source, _ in letter.slots:
            table.flying.setdefault(table.memory(source), []).append((letter, source))
    for write in writes:
        first = write.sources[0][0]
        # The carrier writes messages that arrive straight: only events that their sender knew have surely come before.
        knows = clock[first.src] if isinstance(first, _Letter) and first.straight_in else after[write.slot[0]]
        for letter, _ in table.flying.pop(table.memory(write.slot), ()):
            letter.straight_out &= bool(knows[letter.dst] >= letter.round + 2)
        table.version[write.slot] = write.version
        table.heard[write.slot] = bool(knows.all())
        table.written[write.slot] = k
        table.used[table.memory(write.slot)] = k + 1


def _results(table: _Table, clock: Clock) -> None:
    """Results that are not FINAL are copied in the end. Messages may still be leaving the input there."""
    for slot in table.version:
        for letter, source in table.flying.get(table.memory(slot), ()) if slot[1] == table.schedule.result else ():
            if source != slot:
                letter.straight_out &= bool(clock[slot[0]][letter.dst] >= letter.round + 2)


def _program(table: _Table, rank: int, letters: list[list[_Letter]], writes: list[list[_Write]]) -> MessageProgram:
    """The program of one rank, round by round. Receives are posted a round ahead if their places allow it."""
    mine = [[letter for letter in round_ if rank in (letter.src, letter.dst)] for round_ in letters]
    number = {letter: n for n, letter in enumerate(letter for round_ in mine for letter in round_)}
    messages = tuple(_message(table, rank, letter) for letter in number)
    writings: list[Writing] = []
    rows: list[MessageRow] = []
    posted: set[_Letter] = set()
    for k, round_ in enumerate(mine):
        sent = [letter for letter in round_ if letter.src == rank]
        taken = [letter for letter in round_ if letter.dst == rank]
        ahead = [
            letter for letter in (mine[k + 1] if k + 1 < len(mine) else ()) if letter.dst == rank and letter.post <= k
        ]
        rows += [MessageRow(POST, number[letter]) for letter in taken if letter not in posted]
        rows += [MessageRow(SEND, number[letter]) for letter in sent]
        rows += [MessageRow(POST, number[letter]) for letter in ahead]
        rows += [MessageRow(TAKE, number[letter]) for letter in taken]
        posted.update(ahead)
        for write in writes[k]:
            if write.slot[0] == rank:
                rows.append(MessageRow(MOVE, len(writings)))
                writings.append(_writing(table, k, number, write))
    ends = {writing.place[:2]: writing.place.where for writing in writings if writing.place.buffer != T}
    return MessageProgram(rank, messages, tuple(writings), tuple(rows), ends)


def _message(table: _Table, rank: int, letter: _Letter) -> TableMessage:
    if letter.src == rank:
        versions = zip(letter.slots, letter.versions, strict=True)
        places = tuple(table.where(source, version) for (source, _), version in versions)
        return TableMessage(letter.round, letter.dst, places, letter.runs(), letter.sole, letter.straight_out)
    places = tuple(table.where(slot, letter.made[slot]) for _, slot in letter.slots)
    return TableMessage(letter.round, letter.src, places, letter.runs(), letter.sole, letter.straight_in)


def _writing(table: _Table, k: int, number: dict[_Letter, int], write: _Write) -> Writing:
    """A write as its rank sees it."""
    sources = tuple(
        Piece(number[source], at) if isinstance(source, _Letter) else table.where(source, at)
        for source, at in write.sources
    )
    return Writing(k, table.where(write.slot, write.version), sources)
