"""Prove programs of messages, by an abstract run of all ranks.

Messages name their sender, receiver and tag, and only TAKE waits. So one order of the ranks' rows stands for all
orders, if no row races with another. Clocks decide about races: an event that a rank does not know to be over may
happen at any time. The proof uses rows and messages, and nothing of the code that made them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base.errors import ProgramError
from ...schedule import Schedule, moves
from ...schedule.contract import Slot, slot_text
from .message_program import FINAL, GIVEN, KEPT, MOVE, POST, TAKE, MessageProgram, Piece, TableMessage, memory_of

_Clock = list[int]
_Key = tuple[int, int, int]
"""A message among all: round, source, destination."""


class _Flight:
    """A message on its way. taken: its receiver's tick at TAKE, unknown (0) until then."""

    def __init__(self, values: list[int], clock: _Clock) -> None:
        self.values, self.clock, self.taken = values, clock, 0


class _Open:
    """A posted receive. slots: the carrier may write them from now on. flying: messages that were leaving the slots."""

    def __init__(self, clock: _Clock, slots: list[Slot], flying: list[_Key]) -> None:
        self.clock, self.slots, self.flying = clock, slots, flying


class _Side:
    """The state of one rank.

    taken: the values of messages that are there.
    landed: the messages that are in their places, and what the carrier knew.
    """

    def __init__(self, program: MessageProgram, clock: _Clock) -> None:
        self.program, self.clock, self.at = program, clock, 0
        self.open: dict[int, _Open] = {}
        self.taken: dict[int, list[int]] = {}
        self.landed: dict[Slot, _Clock] = {}


def prove_messages(schedule: Schedule, programs: Sequence[MessageProgram]) -> None:
    """Prove that all ranks come to their end, with the values of the table in all slots, at any timing.

    Prove also that no row touches memory that the carrier has at the time, and that FINAL places are written when all
    ranks have begun. All this is proved also for input and result in one memory (`memory_of`). Raises ProgramError.
    """
    _Run(schedule, programs).run()


class _Run:
    def __init__(self, schedule: Schedule, programs: Sequence[MessageProgram]) -> None:
        self.schedule, self.name = schedule, schedule.name
        self.numbers: dict[tuple[int, ...] | Slot, int] = {}
        self.want = self.expected(schedule)
        self.values: dict[Slot, int] = {}
        self.places: dict[Slot, int] = {}
        self.flights: dict[_Key, _Flight] = {}
        self.leaving: dict[Slot, list[tuple[_Key, Slot]]] = {}
        """By memory: the messages that may be leaving it, and the slots that they leave."""
        self.gone: dict[Slot, Slot] = {}
        """Memory that has lost the input -> the result that has been written there."""
        ranks = schedule.ranks
        self.sides = [_Side(program, [int(q == r) for q in range(ranks)]) for r, program in enumerate(programs)]

    def number(self, value: tuple[int, ...] | Slot) -> int:
        """The number of a value: the first value of a slot, or a combination of values in an order."""
        return self.numbers.setdefault(value, len(self.numbers))

    def expected(self, schedule: Schedule) -> dict[Slot, int]:
        """The value that the table itself leaves in each slot that it writes."""
        held: dict[Slot, int] = {}
        for _, round_ in moves(schedule):
            new = {slot: self.combined([held.get(s, self.number(s)) for s in sources]) for slot, sources in round_}
            held.update(new)
        return held

    def combined(self, values: list[int]) -> int:
        return values[0] if len(values) == 1 else self.number((-1, *values))

    def run(self) -> None:
        going = True
        while going:
            going = False
            for rank, side in enumerate(self.sides):
                while side.at < len(side.program.rows) and self.step(rank, side):
                    side.at += 1
                    going = True
        for rank, side in enumerate(self.sides):
            if side.at < len(side.program.rows):
                raise self.fault(rank, "waits for a message for ever")
            if side.open or side.landed:
                raise self.fault(rank, "leaves a message where it has arrived")
        for slot in self.places:
            self.copied(slot)
        for slot, value in self.want.items():
            if self.values.get(slot) != value:
                raise self.fault(slot[0], f"ends with a wrong value in {slot_text(slot)}")

    def fault(self, rank: int, reason: str) -> ProgramError:
        side = self.sides[rank]
        row = side.program.rows[side.at] if side.at < len(side.program.rows) else "its end"
        return ProgramError(f"{self.name}: rank {rank} {reason} (at {row}, row {side.at})")

    def step(self, rank: int, side: _Side) -> bool:
        """Do a rank's next row; False if it must wait."""
        kind, number = side.program.rows[side.at]
        if kind == MOVE:
            side.clock[rank] += 1
            self.move(rank, side, number)
            return True
        message = side.program.messages[number]
        if kind == TAKE:
            return self.take(rank, side, number, message)
        side.clock[rank] += 1
        if kind == POST:
            self.post(rank, side, number, message)
        else:
            self.send(rank, side, message)
        return True

    def post(self, rank: int, side: _Side, number: int, message: TableMessage) -> None:
        if number in side.open or number in side.taken:
            raise self.fault(rank, "posts a receive twice")
        slots = [self.memory((rank, *place[:2])) for place in message.places] if message.direct else []
        self.free(rank, slots)
        flying = [key for slot in slots for key, _ in self.leaving.get(slot, ())]
        side.open[number] = _Open(list(side.clock), slots, flying)

    def send(self, rank: int, side: _Side, message: TableMessage) -> None:
        key = (message.round, rank, message.peer)
        if key in self.flights:
            raise self.fault(rank, "sends a message twice")
        slots = [(rank, *place[:2]) for place in message.places]
        values = [self.read(rank, slot, place.where) for slot, place in zip(slots, message.places, strict=True)]
        self.flights[key] = _Flight(values, list(side.clock))
        for slot in slots if message.direct else ():
            self.leaving.setdefault(self.memory(slot), []).append((key, slot))

    def take(self, rank: int, side: _Side, number: int, message: TableMessage) -> bool:
        flight = self.flights.get((message.round, message.peer, rank))
        if flight is None:
            return False
        entry = side.open.pop(number, None)
        if entry is None:
            raise self.fault(rank, "takes a message for which it has posted no receive")
        if len(flight.values) != len(message.places):
            raise self.fault(rank, "takes a message that has another size")
        # The carrier wrote at any time after both the post and the send.
        knows = list(map(max, entry.clock, flight.clock))
        for key in entry.flying:
            self.has_left(rank, key, knows)
        side.clock[:] = map(max, side.clock, flight.clock)
        side.clock[rank] += 1
        flight.taken = side.clock[rank]
        side.taken[number] = flight.values
        side.landed.update(dict.fromkeys(entry.slots, knows))
        return True

    def move(self, rank: int, side: _Side, number: int) -> None:
        writing = side.program.writings[number]
        place, sources = writing.place, writing.sources
        slot, values, direct = (rank, *place[:2]), [], False
        memory = self.memory(slot)
        for source in sources:
            if not isinstance(source, Piece):
                values.append(self.read(rank, (rank, *source[:2]), source.where))
                continue
            if source.message not in side.taken:
                raise self.fault(rank, "reads a message that it has not taken")
            values.append(side.taken[source.message][source.part])
            message = side.program.messages[source.message]
            direct = message.direct
            if direct and (len(sources) > 1 or message.places[source.part] != place):
                raise self.fault(rank, "combines what has arrived in another place")
        knows = side.landed.pop(memory, side.clock) if direct else side.clock
        self.free(rank, [memory])
        for key, _ in self.leaving.pop(memory, ()):
            self.has_left(rank, key, side.clock)
        self.put(rank, slot, place.where, self.combined(values), knows)

    def memory(self, slot: Slot) -> Slot:
        return memory_of(self.schedule, slot)

    def copied(self, slot: Slot) -> None:
        """A result that is KEPT is copied in the end, where the input may be. No message may be leaving the memory."""
        rank, memory = slot[0], self.memory(slot)
        if memory != slot and self.places[slot] == KEPT:
            for key, source in self.leaving.get(memory, ()):
                if source != slot:
                    self.has_left(rank, key, self.sides[rank].clock)

    def free(self, rank: int, slots: list[Slot]) -> None:
        """No row may touch memory that a posted receive may write, or has written, before it is moved."""
        side = self.sides[rank]
        for slot in slots:
            if slot in side.landed or any(slot in entry.slots for entry in side.open.values()):
                raise self.fault(rank, f"touches {slot_text(slot)}, which a message may be written to")

    def has_left(self, rank: int, key: _Key, knows: _Clock) -> None:
        flight, receiver = self.flights[key], key[2]
        if not flight.taken or knows[receiver] < flight.taken:
            raise self.fault(rank, f"writes what may still be on its way to rank {receiver}")

    def read(self, rank: int, slot: Slot, where: int) -> int:
        memory = self.memory(slot)
        self.free(rank, [memory])
        if where == GIVEN and memory in self.gone:
            raise self.fault(rank, f"reads {slot_text(slot)} when {slot_text(self.gone[memory])} may be written there")
        if self.places.get(slot, GIVEN if slot[1] == 0 else 1) != where:
            raise self.fault(rank, f"reads an old value of {slot_text(slot)}")
        return self.values.get(slot, self.number(slot))

    def put(self, rank: int, slot: Slot, where: int, value: int, knows: _Clock) -> None:
        if where == FINAL and not all(knows):
            raise self.fault(rank, f"writes the result {slot_text(slot)} while ranks may be in another call")
        if where == GIVEN:
            raise self.fault(rank, f"writes its input {slot_text(slot)}")
        if self.places.get(slot) == FINAL:
            raise self.fault(rank, f"writes the result {slot_text(slot)} twice")
        self.values[slot], self.places[slot] = value, where
        if where == FINAL:
            self.gone[self.memory(slot)] = slot
