"""The steps of a call over several hosts: its copies, programs and messages, in memory, ready to be made.

For a short call, finding the steps takes longer than making them. So they are kept for calls of the same plan on
tensors at the same addresses. Short tensors are copied: the copies are always at the same addresses. Steps only know
addresses, and keep no memory of the user alive.

The parts inside one host are programs of the kernel in the group of its ranks. The relay runs them
(`InsideProgram.run`), and reports when the kernel waits: the ranks look at each other in the call as a whole. The ranks
of a host have entered the same call by then. So their programs differ only if some ranks cannot reach the memory of
others; then they all run the staged program.
"""

import ctypes
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ....base.errors import InternalError
from ....base.records import digest
from ....engine.compile.plan import CallPlan
from ....engine.compile.program import DISAGREE, FAILED, WAITING
from ....engine.reducers import CustomOp, combine_address
from ....engine.tensors import dtype_name, tensor_at
from ....hosts.messages import Bytes, Exchange, Journal, Room
from ....hosts.messages.message_program import KEPT, ChunkPlace
from ....hosts.span import Span
from ....ranks.group.group import Group
from ....schedule import BLOCKED, HOLDERS, REDUCING, T
from ...arguments import blank
from ..planning import make_plan
from ..request import Request, Tensors, is_one
from ..retry_rules import StagedCalls, stage_for_a_while, stage_private, takes_turn
from ..step import kernel_address
from .hosts_plan import At, Home, Inside, Leg, SpanPlan, Wave

View = Callable[[At], torch.Tensor]
"""Finds chunks in memory."""

Copy = Callable[[], object]
"""Copies the bytes of some chunks."""

_TAG_ODD, _TAG_MASK = 0x9E3779B97F4A7C15, (1 << 30) - 1
_KEPT, _KEPT_BYTES = 1024, 1 << 30
"""The most calls with steps that a turn keeps. A turn with more memory than this is forgotten when the next begins."""


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
    """A part of a call that is inside this host, ready to be run. local: the group of the ranks of this host."""

    def __init__(self, local: Group, request: Request, algorithm: str | None) -> None:
        self._request, self._algorithm = request, algorithm
        self._inp, *kept_inp = kernel_address(request.inp)
        self._out, *kept_out = kernel_address(request.out)
        self._kept = kept_inp, kept_out
        self._usual = self._plan(local)

    def run(self, local: Group, here: Sequence[int]) -> Iterator[int]:
        """Run it; yields outcomes, see `engine.compile.program`. here: the ranks of this host in the call."""
        differed = False
        with local.lock:
            plan = self._in_turn(local) if StagedCalls in local.kept else self._usual
            while status := local.run(plan.address, self._inp, self._out, local.state):
                seat = status >> 8 & 0xFFFF
                if status & 0xFF == FAILED and seat == local.rank:
                    local.host.begin_again()
                    local.host.cross_no_more()
                    stage_private(local)
                    self._usual = plan = self._plan(local)
                elif _differs(local, plan):
                    if differed:
                        raise InternalError(f"ranks of one host make {plan.record} in different ways")
                    differed = True
                    local.host.skip_call()
                    stage_for_a_while(local, plan)
                    plan = self._in_turn(local)
                else:
                    yield (WAITING if status & 0xFF == DISAGREE else status & ~0xFFFF00) | here[seat] << 8

    def _plan(self, local: Group, *, staged: bool = False) -> CallPlan:
        request = self._request
        return make_plan(local, request, request.inp, request.out, self._algorithm, staged=staged)

    def _in_turn(self, local: Group) -> CallPlan:
        return self._plan(local, staged=True) if takes_turn(local, self._usual) else self._usual


def _differs(local: Group, plan: CallPlan) -> bool:
    """Has a rank entered this part, which this rank has entered, with another program?"""
    host, number = local.host, local.host.call_number
    if not host.at_gate(plan.gate_row) or host.signature(local.rank, number) != plan.signature:
        return False
    theirs = [host.signature(rank, number) for rank in range(local.size) if host.entered(rank) >= number]
    return any(signature not in (0, plan.signature) for signature in theirs)  # 0: it has given the call up


class WaveSteps(NamedTuple):
    """The steps of a wave. exchanges: one for each leg. sums: the results of each leg, which an average divides."""

    before: list[InsideProgram]
    brings: list[Copy]
    exchanges: list[Exchange]
    sums: list[list[torch.Tensor]]
    after: list[InsideProgram]
    copies: list[Copy]


class Steps(NamedTuple):
    """The steps of one call.

    given, result: the addresses of its copies of the user's tensors, if any. In a call in place, the two are one.
    exchanges: the exchanges of all waves.
    """

    given: int
    result: int
    waves: list[WaveSteps]
    exchanges: list[Exchange]


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
            for exchange in steps.exchanges:
                exchange.close()
        self.steps.clear()


def steps_of(group: Group, span: Span, plan: SpanPlan, number: int, inp: int, out: int) -> Steps:
    """The steps of this rank's current call; all its neighbours have entered it. inp, out: as for the kernel."""
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
    else:
        for exchange in steps.exchanges:
            exchange.begin(number)
    return steps


def forget_all(span: Span) -> list[torch.Tensor]:
    """A call has failed: later calls do not use its memory. Returns this memory."""
    memory = [block for turn in span.kept.values() for block in turn.room.blocks]
    span.kept.clear()
    return memory


def _tag(places: tuple[int, int, int], call: object, round_: int, index: int = 0) -> int:
    """The tag of a message. places: the numbers of the group and of the leg, and the signature of the plan."""
    return (digest(*places, call) + (round_ << 8) + index) * _TAG_ODD >> 20 & _TAG_MASK


class _Maker:
    """Makes steps. They hold neither the group nor its span, which hold them."""

    def __init__(self, group: Group, span: Span, plan: SpanPlan, number: int, room: Room) -> None:
        self._group, self._span, self._number, self._room = group, span, number, room
        self._plan, self._request, self._dtype = plan, plan.request, plan.request.like.dtype
        self._item = max(1, self._dtype.itemsize)
        self._rows = 0
        """The number of rows of the exchanges that have been made."""

    def make(self, sides: tuple[Sequence[int], Sequence[int]] | None) -> Steps:
        """sides: the addresses of the blocks of the user's tensors; None: the call works on copies."""
        plan, given, result = self._plan, 0, 0
        made, fetched = self._take(plan.made), self._take(plan.fetched)
        if sides is None:
            given = self._take(sum(plan.inp.lengths))
            result = given if self._request.in_place else self._take(sum(plan.out.lengths))
            sides = plan.inp.in_one(given), plan.out.in_one(result)
        self._blocks = {
            Home.GIVEN: dict(enumerate(sides[0], plan.inp.first)),
            Home.RESULT: dict(enumerate(sides[1], plan.out.first)),
            Home.MADE: {0: made},
            Home.FETCHED: {0: fetched},
        }
        waves = [self._wave(number, wave) for number, wave in enumerate(plan.waves)]
        return Steps(given, result, waves, [exchange for wave in waves for exchange in wave.exchanges])

    def _take(self, count: int) -> int:
        return self._room.take(count * self._item).start

    def _wave(self, number: int, wave: Wave) -> WaveSteps:
        def view(at: At) -> torch.Tensor:
            found = self._at(wave, at)
            return tensor_at(found.start, found.nbytes // self._item, self._dtype)

        def copy(at: At, home: Home) -> Copy:
            to, source = self._at(wave, at._replace(place=home)), self._at(wave, at)
            return partial(ctypes.memmove, to.start, source.start, to.nbytes)

        return WaveSteps(
            [*self._parts(wave.before, view)],
            [copy(at, Home.MADE) for leg in wave.legs for at in leg.brings],
            [self._exchange(number, wave, leg) for leg in wave.legs],
            [[*map(view, leg.results)] for leg in wave.legs],
            [*self._parts(wave.after, view)],
            [copy(at, Home.RESULT) for at in wave.copies],
        )

    def _at(self, wave: Wave, at: At) -> Bytes:
        block, start, stop = wave.layouts[at.place].run(at.first, at.last)
        base = self._blocks[at.place][block]
        return Bytes(base + start * self._item, base + stop * self._item)

    def _parts(self, parts: Iterable[Inside], view: View) -> Iterator[InsideProgram]:
        local = self._span.local
        for part in parts:
            if any(part.sizes):
                request = inside_request(part, self._request, local.rank, view)
                yield InsideProgram(local, request, part.algorithm)

    def _exchange(self, number: int, wave: Wave, leg: Leg) -> Exchange:
        op, combine = self._request.op, None
        if isinstance(op, str | CustomOp):
            combine = combine_address(dtype_name(self._dtype), op, last=False), self._item
        places = {place: self._at(wave, at) for place, at in leg.places.items()}
        for chunk, count in enumerate(leg.temporary):
            places[ChunkPlace(T, chunk, KEPT)] = self._room.take(count * self._item)
        carrier, call = self._span.carrier, self._number
        tag = partial(_tag, (self._span.gid, leg.number, self._plan.signature))
        lasts = carrier.own_thread or carrier.compiled
        first, self._rows = self._rows, self._rows + len([*leg.program.steps()])
        return Exchange(
            carrier, leg.program, [self._group.world_ranks[peer] for peer in leg.peers], places, combine, call, tag,
            room=self._room, persistent=partial(tag, f"turn {call & 1}") if lasts else None,
            journal=Journal(self._group.host, number, first),
        )  # fmt: skip
