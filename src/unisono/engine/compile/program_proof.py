"""Prove compiled programs: no race, no deadlock, and the right values, for every timing.

The proof uses rows and refs only, and nothing of the compiler. It runs the programs of all ranks abstractly: two calls,
to find errors between calls, of three segments each, because the third is the first to reuse a staging half.

- Deadlock: every wait is for a monotone word with one writer, so one run decides for every timing.
- Races: by vector clocks, each access of a place must be ordered after the accesses that conflict with it.
- The tensors are written before each call and overwritten after it, so late readers and early writers are races.
- Values are exact sums of random integers: a wrong sum passes with a probability below 2^-40.

On several hosts, ranks of one host wait for each other, and messages order the rest:

- A message takes with it what its sender knows. The transport reads the slot that leaves, and writes the slot where it
  comes, at any time while the message is under way: each other use meanwhile is a race.
- No rank writes the memory of its user, and no rank ends the call, before it knows that all ranks have entered it.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import ProgramError
from ...schedule.contract import BLOCKED, Slot, Value, contract
from ...schedule.hosts import Hosts
from ...schedule.table import Schedule
from .program import IN, OUT, STAGE, STEP_BITS, Lowering, Op, Program, RowWord, Words

_SEGMENTS = 3

_OP, _PEER, _STEP, _NIN, _FIRST, _NOUT, _POST = map(int, (
    RowWord.OP, RowWord.RANK, RowWord.STEP, RowWord.NIN, RowWord.FIRST_REF, RowWord.NOUT, RowWord.POST
))  # fmt: skip
"""The words of a row as plain integers, which Python finds faster."""

Place = tuple[int, ...]
"""(STAGE, rank, half, slot) or (IN or OUT, rank, call, segment, block, sub)."""


class _Content:
    """What a place holds. writer, at: the rank that wrote it, and when. readers: the ranks that have read it since, and
    when. count_index: which of the counts of blocks is its own.
    """

    __slots__ = ("at", "count_index", "readers", "value", "writer")

    def __init__(self) -> None:
        self.writer = -1
        self.at = self.value = 0
        self.count_index: int | None = None
        self.readers: dict[int, int] = {}


class _Letter(NamedTuple):
    """A message under way: what its sender knew, its value, and which of the counts of blocks is its own."""

    clock: Words
    value: int
    count_index: int


class CompiledCall(NamedTuple):
    """One call of all ranks: the schedule, the programs of all ranks, and their lowering."""

    schedule: Schedule
    programs: Sequence[Program]
    lowering: Lowering


def prove_programs(schedule: Schedule, programs: Sequence[Program], lowering: Lowering) -> None:
    """Prove that these programs, run twice in a row, keep the schedule's contract. Raises ProgramError."""
    prove_calls([CompiledCall(schedule, programs, lowering)] * 2)


def prove_calls(calls: Sequence[CompiledCall]) -> None:
    """Prove the same for calls of several schedules in one group, one after the other."""
    _Machine(calls).run()


class _Machine:
    def __init__(self, calls: Sequence[CompiledCall]) -> None:
        self.calls, self.hosts = calls, calls[0].schedule.hosts or Hosts.one(len(calls[0].programs))
        self.under_way: dict[tuple[int, int, int, int], _Letter] = {}
        """Sender, receiver, segment and number of each message that has left and has not come."""
        self.leaving: dict[Place, tuple[int, int]] = {}  # slot that leaves -> its rank and the segment
        self.landing: set[Place] = set()  # slots that the transport may write
        self.ranks = p = len(calls[0].programs)
        self.clocks = np.zeros((p, p), np.int64)
        self.clock: list[Any] = [memoryview(clock) for clock in self.clocks]  # type: ignore[arg-type]  # it is a buffer
        """The same clocks, of which Python finds a word faster."""
        self.events = 0
        self.posted = [0] * p
        self.waits = [_waits(call.programs) for call in calls]
        self.seen: dict[tuple[int, int], tuple[Words, int]] = {}
        """Rank and posted value -> its clock then, and how many waits for it are still to come."""
        self.entered: list[list[Words]] = [[] for _ in range(p)]  # per rank and call, its clock at the gate
        self.aware: set[tuple[int, int]] = set()  # rank and call: it knows that all ranks have entered
        self.contents: dict[Place, _Content] = defaultdict(_Content)
        self.halves: dict[tuple[int, int], dict[int, Words]] = defaultdict(dict)
        """Rank and half -> segment -> when each rank has used the half for it last."""
        draw = random.Random(0)  # noqa: S311  not for secrets
        self.data: dict[Place, int] = defaultdict(lambda: draw.getrandbits(40))  # by call, segment, rank and chunk
        self.value = cache(self._value)
        self.user = [_user_places(call) for call in calls]

    def run(self) -> None:
        waiting = {rank: self.process(rank) for rank in range(self.ranks)}
        while waiting:
            moved = False
            for rank, process in list(waiting.items()):
                before = self.events
                try:
                    next(process)
                except StopIteration:
                    del waiting[rank]
                moved = moved or rank not in waiting or before != self.events
            if not moved:
                raise ProgramError(f"{self.name}: deadlock of ranks {sorted(waiting)}")
        if self.under_way:
            raise ProgramError(f"{self.name}: {len(self.under_way)} messages are sent but never received")

    @property
    def name(self) -> str:
        return " ; ".join(dict.fromkeys(f"{call.schedule.name} ({call.lowering})" for call in self.calls))

    # One rank, as a generator that yields while it waits.
    def process(self, me: int) -> Iterator[None]:
        segment, floor = 0, 0
        half_readers: list[frozenset[int]] = [frozenset(), frozenset()]
        for number, call in enumerate(self.calls):
            program = call.programs[me]
            rows, refs = program.rows.tolist(), list(map(tuple, program.refs.tolist()))
            self.fill(me, number)
            for part in range(_SEGMENTS):
                for peer in sorted(half_readers[segment & 1]):
                    if floor < (segment - 1) << STEP_BITS:
                        yield from self.wait(me, peer, (segment - 1) << STEP_BITS)
                half_readers[segment & 1] = program.readers
                self.begin(me, segment, rows)
                for row in rows:
                    if row[_OP] == Op.WAIT:
                        goal = (segment << STEP_BITS) + row[_STEP]
                        if floor < goal:
                            yield from self.wait(me, row[_PEER], goal)
                    elif row[_OP] == Op.GATE and part == 0:
                        yield from self.gate(me, number)
                        floor = (segment << STEP_BITS) + program.gate_step
                    else:
                        if row[_OP] == Op.MOVE:
                            self.move(me, number, part, segment, row, refs)
                        elif row[_OP] == Op.SEND and (part == 0 or not row[RowWord.EMPTY]):
                            self.send(me, segment, row)
                        elif row[_OP] == Op.RECV and (part == 0 or not row[RowWord.EMPTY]):
                            yield from self.receive(me, segment, row)
                        if row[_POST]:
                            self.post(me, (segment << STEP_BITS) + row[_POST], self.waits[number][me, row[_POST]])
                if part == 0:  # it may be the last
                    self.knows_all(me, number, "ends the call")
                segment += 1
                self.post(me, segment << STEP_BITS, self.ranks)
            self.leaving = {place: of for place, of in self.leaving.items() if of[0] != me}
            self.check(me, number)

    def begin(self, me: int, segment: int, rows: list[list[int]]) -> None:
        """What left this half has left, and the transport may write what comes."""
        self.leaving = {place: of for place, of in self.leaving.items() if of[0] != me or (of[1] ^ segment) & 1}
        for row in rows:
            if row[_OP] == Op.RECV and not row[RowWord.EMPTY]:
                place = STAGE, me, segment & 1, row[RowWord.SLOT]
                self.free(me, place)
                self.use_half(me, me, segment)
                self.write(me, place, -1)
                self.landing.add(place)

    def send(self, me: int, segment: int, row: list[int]) -> None:
        self.tick(me)
        peer, number = row[RowWord.PEER], row[RowWord.MESSAGE]
        letter = _Letter(self.clocks[me].copy(), 0, row[RowWord.COUNT_INDEX])
        if not row[RowWord.EMPTY]:
            place = STAGE, me, segment & 1, row[RowWord.SLOT]
            self.use_half(me, me, segment)
            letter = letter._replace(value=self.read(me, place))
            if self.contents[place].count_index != letter.count_index:
                raise ProgramError(f"{self.name}: rank {me} sends {_say(place)} with the size of another block")
            self.leaving[place] = me, segment
        if self.hosts.host_of(peer) == self.hosts.host_of(me) or (me, peer, segment, number) in self.under_way:
            raise ProgramError(f"{self.name}: rank {me} sends message {number} twice, or to rank {peer} on its host")
        self.under_way[me, peer, segment, number] = letter

    def receive(self, me: int, segment: int, row: list[int]) -> Iterator[None]:
        key = row[RowWord.PEER], me, segment, row[RowWord.MESSAGE]
        while key not in self.under_way:
            yield
        letter = self.under_way.pop(key)
        self.tick(me)
        self.join(me, letter.clock)
        if not row[RowWord.EMPTY]:
            place = STAGE, me, segment & 1, row[RowWord.SLOT]
            self.landing.discard(place)
            if letter.count_index != row[RowWord.COUNT_INDEX]:
                raise ProgramError(f"{self.name}: rank {me} receives a block with the size of another one")
            self.write(me, place, letter.value, letter.count_index)

    def free(self, me: int, place: Place) -> None:
        """Raise if the transport may use this place."""
        if place in self.landing:
            raise ProgramError(f"{self.name}: rank {me} uses {_say(place)} while a message arrives there")

    def knows_all(self, me: int, number: int, does: str) -> None:
        """Raise if this rank does not know that all ranks have entered the call."""
        if (me, number) in self.aware:
            return
        for rank in range(self.ranks):
            entered = self.entered[rank]
            if len(entered) <= number or self.clock[me][rank] < entered[number][rank]:
                raise ProgramError(f"{self.name}: rank {me} {does} before it knows that rank {rank} has entered it")
        self.aware.add((me, number))

    def tick(self, me: int) -> int:
        self.events += 1
        self.clock[me][me] = now = self.clock[me][me] + 1
        return int(now)

    def post(self, me: int, value: int, waits: int) -> None:
        """waits: how many waits are for this value."""
        self.tick(me)
        if value <= self.posted[me]:
            raise ProgramError(f"{self.name}: rank {me} posts step {value} after step {self.posted[me]}")
        self.posted[me] = value
        if waits:
            self.seen[me, value] = self.clocks[me].copy(), waits

    def join(self, me: int, clock: Words) -> None:
        self.events += 1
        np.maximum(self.clocks[me], clock, out=self.clocks[me])

    def wait(self, me: int, peer: int, goal: int) -> Iterator[None]:
        while self.posted[peer] < goal:
            yield
        if not goal:
            return
        found = self.seen.pop((peer, goal), None)
        if found is None:
            raise ProgramError(f"{self.name}: rank {me} waits for a step that rank {peer} never posts")
        clock, waits = found
        if waits > 1:
            self.seen[peer, goal] = clock, waits - 1
        self.join(me, clock)

    def gate(self, me: int, number: int) -> Iterator[None]:
        self.tick(me)
        self.entered[me].append(self.clocks[me].copy())
        for peer in self.hosts.beside(me):
            while len(self.entered[peer]) <= number:
                yield
            self.join(me, self.entered[peer][number])

    def move(self, me: int, number: int, part: int, segment: int, row: list[int], refs: list[tuple[int, ...]]) -> None:
        call, nin, index, first = self.calls[number], row[_NIN], row[RowWord.COUNT_INDEX], row[_FIRST]
        self.tick(me)
        places: list[Place] = []
        for where, rank, block, sub in refs[first : first + nin + row[_NOUT]]:
            if where == STAGE:
                places.append((STAGE, rank, segment & 1, block))
                self.use_half(me, rank, segment)
            else:
                alias = IN if call.lowering.in_place and where == OUT else where
                places.append((alias, rank, number, part, block, sub))
        terms = [self.read(me, place, index) for place in places[:nin]]
        total = self.total(number, terms)
        for place in places[nin:]:
            if place[0] != STAGE:
                self.knows_all(me, number, "writes its output")
            self.write(me, place, total, index)

    def use_half(self, me: int, owner: int, segment: int) -> None:
        """Raise if another rank may still access this half for another segment: slots may overlap between plans."""
        uses = self.halves[owner, segment & 1]
        if segment not in uses:
            uses[segment] = np.zeros(self.ranks, np.int64)
        for other in [other for other in uses if other != segment]:
            for rank in np.flatnonzero(uses[other] > self.clocks[me]):
                if rank != me:
                    raise ProgramError(
                        f"{self.name}: rank {me} reuses staging of rank {owner} while rank {rank} is in segment {other}"
                    )
            if me == owner:
                del uses[other]
        uses[segment][me] = self.clock[me][me]

    def read(self, me: int, place: Place, index: int | None = None) -> int:
        """The value of a place. index: which of the counts of blocks the reader takes for its own."""
        self.free(me, place)
        content = self.contents[place]
        if content.writer < 0:
            raise ProgramError(f"{self.name}: rank {me} reads {_say(place)}, which no rank has written")
        if content.writer != me and self.clock[me][content.writer] < content.at:
            raise ProgramError(f"{self.name}: rank {me} reads {_say(place)} while rank {content.writer} writes it")
        if index is not None and content.count_index not in (None, index):
            raise ProgramError(
                f"{self.name}: rank {me} moves block {content.count_index} with block {index}'s size: {_say(place)}"
            )
        content.readers[me] = self.clock[me][me]
        return content.value

    def write(self, me: int, place: Place, value: int, index: int | None = None) -> None:
        """index: which of the counts of blocks is that of the new value; None: it stays."""
        self.free(me, place)
        if place in self.leaving:
            raise ProgramError(f"{self.name}: rank {me} overwrites {_say(place)} while it is being sent")
        content, clock = self.contents[place], self.clock[me]
        if content.writer >= 0:
            content.readers.setdefault(content.writer, content.at)  # whoever has read it since knows that write
        for rank, at in content.readers.items():
            if rank != me and clock[rank] < at:
                raise ProgramError(f"{self.name}: rank {me} overwrites {_say(place)} while rank {rank} uses it")
        content.writer, content.at, content.readers, content.value = me, clock[me], {}, value
        if index is not None:
            content.count_index = index

    # What the user does before and after a call.
    def fill(self, me: int, number: int) -> None:
        self.tick(me)
        given, results = self.user[number]
        for part in range(_SEGMENTS):
            for place, _ in results[me]:
                self.write(me, _at(place, number, part), -1)
            for place, (origin, _) in given[me]:
                value, index = self.data[number, part, me, origin], self.count_index(number, me, origin)
                self.write(me, _at(place, number, part), value, index)

    def check(self, me: int, number: int) -> None:
        self.tick(me)
        given, results = self.user[number]
        for part in range(_SEGMENTS):
            for place, (origin, ranks) in results[me]:
                if self.read(me, _at(place, number, part)) != self.value(number, part, origin, ranks):
                    raise ProgramError(
                        f"{self.name}: rank {me} ends with a wrong value in {_say(_at(place, number, part))}"
                    )
            for place, _ in [*given[me], *results[me]]:
                self.write(me, _at(place, number, part), -1)

    def count_index(self, number: int, me: int, origin: int) -> int:
        """Which of the counts of blocks is that of a chunk of a rank's input; see `RowWord`."""
        schedule = self.calls[number].schedule
        if schedule.collective not in BLOCKED:
            return 0
        block = origin * self.ranks // schedule.chunks
        return me * self.ranks + block if schedule.collective == "all_to_all" else block

    def _value(self, number: int, part: int, origin: int, ranks: int) -> int:
        terms = [self.data[number, part, rank, origin] for rank in range(self.ranks) if ranks >> rank & 1]
        return self.total(number, terms)

    def total(self, number: int, terms: list[int]) -> int:
        """What a combination of these values is in a call."""
        return reduce(or_, terms, 0) if self.calls[number].schedule.collective == "barrier" else sum(terms)


UserPlaces = list[list[tuple[Place, Value]]]


def _waits(programs: Sequence[Program]) -> Counter[tuple[int, int]]:
    """Of each rank and step, how many waits are for it in a segment."""
    rows = (program.rows[program.rows[:, _OP] == Op.WAIT][:, (_PEER, _STEP)].tolist() for program in programs)
    return Counter((peer, step) for waits in rows for peer, step in waits)


def _user_places(call: CompiledCall) -> tuple[UserPlaces, UserPlaces]:
    """The places of each rank's input and output, with the values that the contract gives them."""
    promise = contract(call.schedule)

    def places(slots: dict[Slot, Value], where: int) -> UserPlaces:
        out: UserPlaces = [[] for _ in range(call.schedule.ranks)]
        for slot in sorted(slots):
            index = len(out[slot[0]])
            out[slot[0]].append(((where, slot[0], index // promise.per_block, index % promise.per_block), slots[slot]))
        return out

    return places(promise.before, IN), places(promise.after, IN if call.lowering.in_place else OUT)


def _at(place: Place, number: int, part: int) -> Place:
    return (*place[:2], number, part, *place[2:])


def _say(place: Place) -> str:
    if place[0] == STAGE:
        return f"staging slot {place[3]} of rank {place[1]}"
    return f"the {'output' if place[0] == OUT else 'input'} of rank {place[1]}, block {place[4]}, chunk {place[5]}"
