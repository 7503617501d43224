"""The steps of a call over several hosts: its copies, programs and messages, in memory, ready to be made.

For a short call, finding the steps takes longer than making them. So they are kept for calls of the same plan on
tensors at the same addresses. Short tensors are copied: the copies are always at the same addresses. Steps only know
addresses, and keep no memory of the user alive.

The parts inside one host are programs of the kernel in the group of its ranks. When they wait for long, the ranks look
at each other in the call as a whole. The ranks of a host have entered the same call by then. So their programs differ
only if some ranks cannot reach the memory of others; then they all run the staged program (`InsideProgram.after`).
"""

import ctypes
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import torch

from ....base.records import digest
from ....engine import tape
from ....engine.compile.plan import CallPlan
from ....engine.compile.program import DISAGREE, DONE, FAILED, STAGED, WAITING, LineWord
from ....engine.reducers import CustomOp, combine_address
from ....engine.tape import TapeWord
from ....engine.tensors import dtype_name, tensor_at
from ....hosts.messages import BEGIN, Bytes, Room, Tags, TapeRow, TapeRun, TapeWriter
from ....hosts.messages.message_program import KEPT, ChunkPlace
from ....hosts.span import Span
from ....ranks.group.group import Group
from ....schedule import BLOCKED, HOLDERS, REDUCING, T
from ...arguments import blank
from ..drive import Run
from ..planning import make_plan
from ..request import Request, Tensors, is_one
from .chunks import Side
from .hosts_plan import At, Home, Inside, Leg, SpanPlan, Wave

View = Callable[[At], torch.Tensor]
"""Finds chunks in memory."""

ENTER, _LAST = BEGIN - 1, 1 << 62
"""The first and the last turn."""
_TAG_ODD, _TAG_MASK = 0x9E3779B97F4A7C15, (1 << 30) - 1
_KEPT, _KEPT_BYTES = 1024, 1 << 30
"""The most calls with steps that a turn keeps. A turn with more memory than this is forgotten when the next begins."""
_CALL_ODD = 0xD1B54A32D192ED03


def inside_request(part: Inside, whole: Request, seat: int, view: View) -> Request:
    """The request for a part of the call `whole`. seat: this rank's. view: finds chunks."""
    kind, dtype, blocked = part.collective, whole.like.dtype, part.collective in BLOCKED

    def side(places: Sequence[At | None], holders: str) -> Tensors:
        if holders == "root" and seat != part.root:
            return None
        tensors = [tensor_at(0, 0, dtype) if at is None else view(at) for at in places]
        return tensors if blocked and holders != "owner" else tensors[seat if blocked else 0]

    if kind == "broadcast":
        inp = out = side(part.reads if seat == part.root else part.writes, "all")
    else:
        inp, out = map(side, (part.reads, part.writes), HOLDERS.get(kind, ("all", "all")))
    return Request(
        kind, blank(max(part.sizes), dtype), inp, out, root=part.root, says=whole.record,
        op=("sum" if whole.op == "avg" else whole.op) if kind in REDUCING else None,
        in_place=not blocked and is_one(inp) and is_one(out) and inp.data_ptr() == out.data_ptr(),
        extents=part.sizes if blocked and len(set(part.sizes)) > 1 else None,
    )  # fmt: skip


class InsideProgram:
    """A part of a call that is inside this host, ready to be run. local: the group of the ranks of this host.

    arguments: see `RunWord`.
    """

    def __init__(self, local: Group, request: Request, algorithm: str | None) -> None:
        self._request, self._algorithm = request, algorithm
        self._usual = self._plan = self._make(local)
        self._run = run = Run.of(self._plan, request, algorithm)  # keeps the memory
        self.arguments = (ctypes.c_int64 * 4)(self._plan.address, run.inp, run.out, local.state)

    def begin(self) -> None:
        """A call begins."""
        if self._plan is not self._usual:
            self._use(self._usual)

    def after(self, local: Group, here: Sequence[int], status: int) -> int:
        """The outcome if the kernel has stopped with this status, see `engine.compile.program`; DONE: it goes on with
        another plan. here: the ranks of this host in the call.
        """
        host, kind, seat = local.engine, status & 0xFF, status >> 8 & 0xFFFF
        if kind == FAILED and seat == local.rank:
            host.cross_no_more()
            local.forget_plans()
            self._usual = self._make(local)
        elif kind != STAGED:
            return (WAITING if kind == DISAGREE else status & ~0xFFFF00) | here[seat] << 8
        host.begin_again()
        self._use(self._make(local, staged=True))
        return DONE

    def _make(self, local: Group, *, staged: bool = False) -> CallPlan:
        return make_plan(local, self._request, self._algorithm, staged=staged)

    def _use(self, plan: CallPlan) -> None:
        self._plan, self.arguments[0] = plan, plan.address


class Steps(NamedTuple):
    """The steps of one call, as a tape.

    insides: the programs of its RUNs.
    """

    run: TapeRun
    insides: list[InsideProgram]


class Turn:
    """What calls with even numbers have in common, or calls with odd numbers: memory, and the steps in this memory.

    The two take turns: messages of the last call may still leave while this one begins. Messages of the last call but
    one have arrived, because every rank has entered the last one. So each call may use all memory of its turn.
    """

    def __init__(self) -> None:
        self.room = Room()
        self.steps: dict[Hashable, Steps] = {}

    def close(self) -> None:
        """Keep no steps."""
        for steps in self.steps.values():
            steps.run.close()
        self.steps.clear()


def steps_of(group: Group, span: Span, plan: SpanPlan, number: int, inp: int, out: int) -> Steps:
    """The steps of this rank's current call. inp, out: as for the kernel."""
    turn: Turn | None = span.kept.get(number & 1)
    if turn is None or turn.room.nbytes > _KEPT_BYTES:
        if turn is not None:
            turn.close()
        turn = span.kept[number & 1] = Turn()
    sides = (plan.inp.addresses(inp), plan.out.addresses(out)) if plan.shared else None
    key = plan.address, sides
    steps = turn.steps.get(key)
    if steps is None:
        if len(turn.steps) >= _KEPT:
            turn.close()
        turn.room.begin()
        steps = turn.steps[key] = _Maker(group, span, plan, number, turn.room).make(sides)
    steps.run.begin(number, inp, out)
    for inside in steps.insides:
        inside.begin()
    return steps


def entry(plan: SpanPlan, number: int) -> Iterator[TapeRow]:
    """Rows by which this rank enters a call of this number, until all ranks of its host have entered it."""
    word = LineWord.NUMBER + (number & 1)
    for rank in (-1, *plan.beside):
        tells = word if rank < 0 else -1
        yield TapeRow(tape.MEET, (tells, rank, word, plan.signature, plan.note), turn=ENTER)


def forget_all(span: Span) -> list[torch.Tensor]:
    """A call has failed: later calls do not use its memory. Returns this memory."""
    memory = [block for turn in span.kept.values() for block in turn.room.blocks]
    span.kept.clear()
    return memory


def _tag(leg: int, call: int, round_: int, index: int = 0) -> int:
    """The tag of a message. leg: a digest of the numbers of the group and of the leg, and of the plan's signature."""
    return (leg + call * _CALL_ODD + (round_ << 8) + index) * _TAG_ODD >> 20 & _TAG_MASK


class _Maker:
    """Makes steps. They hold neither the group nor its span, which hold them.

    All ranks have the same order of rows, by their turns: those of a piece of the vector, a wave, come one round behind
    those of the piece before. A rank first makes all parts before messages, and sends the first messages of all waves.
    """

    def __init__(self, group: Group, span: Span, plan: SpanPlan, number: int, room: Room) -> None:
        self._group, self._span, self._number, self._room = group, span, number, room
        self._plan, self._request, self._dtype = plan, plan.request, plan.request.like.dtype
        self._item, self._op = max(1, self._dtype.itemsize), self._request.op
        self._insides: list[InsideProgram] = []

    def make(self, sides: tuple[Sequence[int], Sequence[int]] | None) -> Steps:
        """sides: the addresses of the blocks of the user's tensors; None: the call works on copies."""
        plan, copies = self._plan, list[TapeRow]()
        made, fetched = self._take(plan.made), self._take(plan.fetched)
        if sides is None:
            given = self._take(sum(plan.inp.lengths))
            result = given if self._request.in_place else self._take(sum(plan.out.lengths))
            sides = plan.inp.in_one(given), plan.out.in_one(result)
            copies += self._users(plan.inp, given, TapeWord.IN)
            copies += self._users(plan.out, result, TapeWord.OUT) if plan.writes else ()
        self._blocks = {
            Home.GIVEN: dict(enumerate(sides[0], plan.inp.first)),
            Home.RESULT: dict(enumerate(sides[1], plan.out.first)),
            Home.MADE: {0: made},
            Home.FETCHED: {0: fetched},
        }
        combine = None
        if isinstance(self._op, str | CustomOp):
            combine = combine_address(dtype_name(self._dtype), self._op, last=False), self._item
        self._writer = TapeWriter(self._span.carrier, self._room, combine)
        rows = [*copies, *entry(plan, self._number)]
        rows += [row for piece, wave in enumerate(plan.waves) for row in self._wave(piece, wave)]
        if plan.shared and _lend(rows):
            rows.append(TapeRow(tape.LEFT, (-1,), turn=_LAST))
        rows.sort(key=attrgetter("turn"))
        rows.append(TapeRow(tape.LEAVE, (), turn=_LAST))
        words = map(ctypes.addressof, (self._span.news, self._span.seen))
        return Steps(TapeRun(self._span.carrier, rows, self._group.engine.state, *words), self._insides)

    def _take(self, count: int) -> int:
        return self._room.take(count * self._item).start

    def _users(self, side: Side, here: int, of: int) -> Iterator[TapeRow]:
        """The copies of the user's input to this memory, or of this memory to the user's output."""
        places = zip(side.in_one(here), side.lengths, strict=True) if side.in_list else [(here, sum(side.lengths))]
        for block, (place, length) in enumerate(places, int(side.in_list)):
            to, source, turn = (place, 0, ENTER) if of == TapeWord.IN else (0, place, _LAST)
            if length:
                yield TapeRow(tape.COPY, (to, source, length * self._item, of, block), turn=turn)

    def _wave(self, piece: int, wave: Wave) -> Iterator[TapeRow]:
        """The rows of a wave; by their turns they are sorted."""
        yield from self._parts(wave, wave.before, BEGIN)
        yield from (self._copy(wave, at, Home.MADE, BEGIN) for leg in wave.legs for at in leg.brings)
        legs = [row for leg in wave.legs for row in self._leg(piece, wave, leg)]
        yield from legs
        turn = 2 * (self._plan.rounds + piece) + 1
        if self._op == "avg" and wave.legs:
            if _lend(legs):
                yield TapeRow(tape.LEFT, (piece,), turn=turn)
            yield from (self._average(wave, at, turn) for leg in wave.legs for at in leg.results)
        if piece == 0:
            yield from self._meet(turn, tells=bool(wave.legs and self._plan.beside))
        yield from self._parts(wave, wave.after, turn)
        yield from (self._copy(wave, at, Home.RESULT, turn) for at in wave.copies)

    def _meet(self, turn: int, *, tells: bool) -> Iterator[TapeRow]:
        """The messages to all ranks of this host have told that all hosts have entered the call."""
        ranks = self._plan.waits_for or (-1,)
        for rank in ranks:
            tell, passes = LineWord.ACROSS if tells and rank == ranks[0] else -1, rank == ranks[-1]
            yield TapeRow(tape.MEET, (tell, rank, LineWord.ACROSS, 0, 0, passes), turn=turn)

    def _at(self, wave: Wave, at: At) -> Bytes:
        block, start, stop = wave.layouts[at.place].run(at.first, at.last)
        base = self._blocks[at.place][block]
        return Bytes(base + start * self._item, base + stop * self._item)

    def _copy(self, wave: Wave, at: At, home: Home, turn: int) -> TapeRow:
        to, source = self._at(wave, at._replace(place=home)), self._at(wave, at)
        return TapeRow(tape.COPY, (to.start, source.start, to.nbytes), turn=turn)

    def _average(self, wave: Wave, at: At, turn: int) -> TapeRow:
        total, divide = self._at(wave, at), combine_address(dtype_name(self._dtype), "avg", last=True)
        words = total.start, total.start, 0, total.nbytes // self._item, divide, self._group.size
        return TapeRow(tape.COMBINE, words, turn=turn)

    def _parts(self, wave: Wave, parts: Iterable[Inside], turn: int) -> Iterator[TapeRow]:
        def view(at: At) -> torch.Tensor:
            found = self._at(wave, at)
            return tensor_at(found.start, found.nbytes // self._item, self._dtype)

        local = self._span.local
        for part in parts:
            if any(part.sizes):
                inside = InsideProgram(local, inside_request(part, self._request, local.rank, view), part.algorithm)
                yield TapeRow(tape.RUN, (len(self._insides), ctypes.addressof(inside.arguments)), turn=turn)
                self._insides.append(inside)

    def _leg(self, piece: int, wave: Wave, leg: Leg) -> Iterator[TapeRow]:
        places = {place: self._at(wave, at) for place, at in leg.places.items()}
        for chunk, count in enumerate(leg.temporary):
            places[ChunkPlace(T, chunk, KEPT)] = self._room.take(count * self._item)
        digested = self._span.gid, leg.number, self._plan.signature
        tags = Tags(partial(_tag, digest(*digested)), partial(_tag, digest(*digested, self._number & 1), 0))
        peers = [self._group.world_ranks[peer] for peer in leg.peers]
        return self._writer.leg(leg.program, peers, places, tags, piece=piece)


def _lend(rows: Iterable[TapeRow]) -> bool:
    """Does a payload of these rows leave straight from its place?"""
    return any(row.kind == tape.SEND and row.wire.straight for row in rows)
