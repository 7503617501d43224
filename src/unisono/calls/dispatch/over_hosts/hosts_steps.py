"""The steps of a call over several hosts: its copies, programs and messages, in memory, ready to be made.

For a short call, finding the steps takes longer than making them. So they are kept for calls of the same plan on
tensors at the same addresses. Short tensors are copied: the copies are always at the same addresses. The steps of long
tensors only know addresses, and keep no memory of the user alive.

The parts inside one host are programs of the kernel in the group of its ranks. The relay runs them
(`InsideProgram.run`), and reports when the kernel waits: the ranks look at each other in the call as a whole. The ranks
of a host have entered the same call by then. So their programs differ only if some ranks cannot reach the memory of
others; then they all run the staged program.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch

from ....base.errors import InternalError
from ....base.records import digest
from ....engine.compile.plan import CallPlan
from ....engine.compile.program import DISAGREE, FAILED, WAITING
from ....engine.reducers import CustomOp, combine_address
from ....engine.tensors import dtype_name
from ....hosts.messages import Exchange, Journal
from ....hosts.span import Span
from ....ranks.group.group import Group
from ....schedule import BLOCKED, ONE_IN, ONE_OUT, REDUCING, X, Y
from ...arguments import blank
from ..planning import make_plan
from ..request import Request, Tensors
from ..retry_rules import StagedCalls, stage_for_a_while, stage_private, takes_turn
from ..step import kernel_address
from .chunks import Vector
from .hosts_plan import At, Home, Inside, Leg, SpanPlan, Wave

View = Callable[[At], torch.Tensor]
"""Finds chunks in memory."""

Copy = Callable[[], object]
"""Copies the bytes of some chunks."""

_TAG_ODD, _TAG_MASK = 0x9E3779B97F4A7C15, (1 << 30) - 1
_SCRATCH = "made", "fetched", "given", "result"

_KEPT, _KEPT_BYTES = 1024, 64 << 20
"""The most calls with steps that a group keeps, and the most memory of their messages."""


def inside_request(part: Inside, whole: Request, seat: int, view: View, empty: torch.Tensor) -> Request:
    """The request for a part of the call `whole`. seat: this rank's. view: finds chunks. empty: an empty tensor."""
    op = ("sum" if whole.op == "avg" else whole.op) if part.collective in REDUCING else None
    if part.collective not in BLOCKED:
        return _on_vectors(part, view)._replace(op=op, says=whole.record)
    return _on_blocks(part, whole, seat, view, empty)._replace(op=op, says=whole.record)


def _on_vectors(part: Inside, view: View) -> Request:
    inp, out = (view(side[0]) if side[0] is not None else None for side in (part.reads, part.writes))
    like = out if inp is None else inp
    if like is None:
        raise InternalError(f"a {part.collective} of which this rank has nothing")
    if part.collective == "broadcast":
        return Request("broadcast", like, like, like, root=part.root, in_place=True)
    in_place = inp is not None and out is not None and inp.data_ptr() == out.data_ptr()
    return Request(part.collective, like, inp, out, root=part.root, in_place=in_place)


def _on_blocks(part: Inside, whole: Request, seat: int, view: View, empty: torch.Tensor) -> Request:
    def side(places: Sequence[At | None], one: bool) -> Tensors:
        if one:
            return next((view(at) for at in places if at is not None), empty)
        return [empty if at is None else view(at) for at in places]

    kind, at_root = part.collective, seat == part.root
    inp = side(part.reads, kind in ONE_IN) if at_root or kind != "scatter" else None
    out = side(part.writes, kind in ONE_OUT) if at_root or kind != "gather" else None
    extents = part.sizes if len(set(part.sizes)) > 1 else None
    return Request(kind, blank(max(part.sizes), whole.like.dtype), inp, out, root=part.root, extents=extents)


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


def _copy(to: torch.Tensor, source: torch.Tensor) -> Copy:
    """A function that copies all bytes of `source`. The call owns the memory."""
    return partial(ctypes.memmove, to.data_ptr(), source.data_ptr(), to.nbytes)


class WaveSteps(NamedTuple):
    """The steps of a wave. exchanges: one for each leg. sums: the results of each leg, which an average divides."""

    before: list[InsideProgram]
    brings: list[Copy]
    exchanges: list[Exchange]
    sums: list[list[torch.Tensor]]
    after: list[InsideProgram]
    copies: list[Copy]


class _Memory(NamedTuple):
    """Scratch memory, as tensors of the call's dtype. given, result: the copies of the user's tensors, if any.

    In a call in place, the two are one.
    """

    made: torch.Tensor
    fetched: torch.Tensor
    given: torch.Tensor
    result: torch.Tensor


def steps_of(group: Group, span: Span, plan: SpanPlan, number: int, inp: int, out: int) -> "Steps":
    """The steps of this rank's current call; all its neighbours have entered it. inp, out: as for the kernel.

    Calls with even and with odd numbers take turns: messages of the last call may still leave while this one begins.
    Messages of the last call but one have arrived, because every rank has entered the last one.
    """
    sides = (plan.inp.addresses(inp), plan.out.addresses(out)) if plan.shared else None
    key = plan.address, number & 1, sides
    steps = span.kept.pop(key, None)
    if isinstance(steps, Steps):
        span.kept[key] = steps  # in order of their last use
        steps.again(number)
        return steps
    steps = _new_steps(group, span, plan, number, sides)
    steps.kept = steps.nbytes <= _KEPT_BYTES
    if steps.kept:
        span.kept[key] = steps
        _make_room(span)
    return steps


def _new_steps(
    group: Group, span: Span, plan: SpanPlan, number: int, sides: tuple[Sequence[int], Sequence[int]] | None
) -> "Steps":
    turn, dtype, end, in_place = number & 1, plan.request.like.dtype, plan.waves[-1], plan.request.in_place
    copied = [0, 0] if sides else [sum(plan.inp.lengths), 0 if in_place else sum(plan.out.lengths)]
    memory = _Memory(*_scratch(span, [end.made.end, end.fetched.end, *copied], dtype, turn))
    if in_place:
        memory = memory._replace(result=memory.given)
    if sides:
        inp, out = (Vector.at(side, at, dtype) for side, at in zip((plan.inp, plan.out), sides, strict=True))
    else:
        inp = Vector(plan.inp.first, memory.given.split_with_sizes(plan.inp.lengths))
        out = Vector(plan.out.first, memory.result.split_with_sizes(plan.out.lengths))
    return _Maker(group, span, plan, number, memory).make(inp, out)


def _make_room(span: Span) -> None:
    while len(span.kept) > _KEPT or sum(steps.nbytes for steps in span.kept.values()) > _KEPT_BYTES:
        span.kept.pop(next(iter(span.kept))).close()


def forget_all(span: Span) -> list[torch.Tensor]:
    """A call has failed: later calls do not use its memory. Returns its scratch memory."""
    span.kept.clear()
    memory = [span.resources.pop(("scratch", name, turn), None) for name, turn in product(_SCRATCH, (0, 1))]
    return [tensor for tensor in memory if tensor is not None]


def _scratch(span: Span, items: Iterable[int], dtype: torch.dtype, turn: int) -> Iterator[torch.Tensor]:
    """Memory of these numbers of elements. If it needs more memory, steps in the old memory are not kept."""
    for name, count in zip(_SCRATCH, items, strict=True):
        key, nbytes = ("scratch", name, turn), count * max(1, dtype.itemsize)
        memory: Any = span.resources.get(key)
        if memory is None or memory.numel() < nbytes:
            memory = span.resources[key] = torch.empty(max(nbytes, 1 << 12), dtype=torch.uint8, device="cpu")
            for old in [old for old in span.kept if old[1] == turn]:
                span.kept.pop(old).close()
        yield memory[:nbytes].view(dtype)


class Steps:
    """The steps of one call.

    given, result: the addresses of its copies of the user's tensors.
    exchanges: the exchanges of all waves.
    kept: will the steps be used again?
    """

    def __init__(self, memory: _Memory, waves: list[WaveSteps]) -> None:
        self.given, self.result = memory.given.data_ptr(), memory.result.data_ptr()
        self.waves = waves
        self.exchanges = [exchange for wave in waves for exchange in wave.exchanges]
        self.kept = False

    @property
    def nbytes(self) -> int:
        """The memory of their messages by now: their second call takes more, for messages that it sends."""
        return sum(exchange.nbytes for exchange in self.exchanges)

    def again(self, number: int) -> None:
        """Be the steps of the call of this number, too."""
        for exchange in self.exchanges:
            exchange.again(number)

    def close(self) -> None:
        """Give memory back, as soon as no message needs it any more."""
        for exchange in self.exchanges:
            exchange.close()


def _tag(places: tuple[int, int, int], call: object, round_: int, index: int = 0) -> int:
    """The tag of a message. places: the numbers of the group and of the leg, and the signature of the plan."""
    return (digest(*places, call) + (round_ << 8) + index) * _TAG_ODD >> 20 & _TAG_MASK


class _Maker:
    """Makes steps. They hold neither the group nor its span, which hold them."""

    def __init__(self, group: Group, span: Span, plan: SpanPlan, number: int, memory: _Memory) -> None:
        self._group, self._span, self._number, self._memory = group, span, number, memory
        self._plan, self._request = plan, plan.request
        self._empty = memory.made[:0]
        self._rows = 0
        """The number of rows of the exchanges that have been made."""

    def make(self, inp: Vector, out: Vector) -> Steps:
        self._inp, self._out = inp, out
        return Steps(self._memory, [self._wave(number, wave) for number, wave in enumerate(self._plan.waves)])

    def _wave(self, number: int, wave: Wave) -> WaveSteps:
        view = partial(self._view, wave)
        return WaveSteps(
            [*self._parts(wave.before, view)],
            [_copy(view(at._replace(place=Home.MADE)), view(at)) for leg in wave.legs for at in leg.brings],
            [self._exchange(number, leg, view) for leg in wave.legs],
            [[*map(view, leg.results)] for leg in wave.legs],
            [*self._parts(wave.after, view)],
            [_copy(view(at._replace(place=Home.RESULT)), view(at)) for at in wave.copies],
        )

    def _view(self, wave: Wave, at: At) -> torch.Tensor:
        match at.place:
            case Home.GIVEN:
                return self._inp.view(wave.given, at.first, at.last)
            case Home.RESULT:
                return self._out.view(wave.result, at.first, at.last)
            case Home.MADE:
                return wave.made.view(self._memory.made, at.first, at.last)
        return wave.fetched.view(self._memory.fetched, at.first, at.last)

    def _parts(self, parts: Iterable[Inside], view: View) -> Iterator[InsideProgram]:
        local = self._span.local
        for part in parts:
            if any(part.sizes):
                request = inside_request(part, self._request, local.rank, view, self._empty)
                yield InsideProgram(local, request, part.algorithm)

    def _exchange(self, wave: int, leg: Leg, view: View) -> Exchange:
        op = self._request.op
        combine = 0
        if isinstance(op, str | CustomOp):
            combine = combine_address(dtype_name(self._request.like.dtype), op, last=False)

        def side(places: Sequence[At | None]) -> list[torch.Tensor]:
            return [self._empty if at is None else view(at) for at in places]

        peers = [self._group.world_ranks[peer] for peer in leg.peers]
        kept, fetched = (side(places) if any(leg.kept[X]) or any(leg.kept[Y]) else [] for places in leg.kept)
        given, final = (side(places) if places else None for places in (leg.given, leg.final))
        number, carrier, places = self._number, self._span.carrier, (self._span.gid, leg.number, self._plan.signature)
        lasts = carrier.own_thread or carrier.compiled
        return Exchange(
            carrier, leg.program, peers, kept, combine, number, partial(_tag, places),
            persistent=partial(_tag, places, f"turn {number & 1}") if lasts else None,
            journal=self._journal(wave, leg), y=fetched, t=leg.temporary, given=given, final=final,
        )  # fmt: skip

    def _journal(self, wave: int, leg: Leg) -> Journal:
        first, self._rows = self._rows, self._rows + len([*leg.program.steps()])
        return Journal(self._group.host, wave, first)
