"""The steps of a call over several hosts: what is copied, called and sent, in memory, ready to be made.

To find them out takes longer than to make them for a short call. So they are kept for calls of the same plan on tensors
at the same addresses. Short tensors are copied, and always are at the same ones; the steps of long ones know addresses
only, and keep nobody's memory alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ....base.records import digest
from ....engine.reducers import CustomOp
from ....engine.tensors.combining import combiner
from ....engine.tensors.plain import as_bits, borrowed, dtype_name
from ....hosts.messages import Exchange, Journal, PersistentReceive, ReceiveBuffers
from ....ranks.group.group import Group
from ....ranks.group.sub_groups import make_sub_group
from ....schedule import X, Y
from ...arguments import plain_dtype
from ..plan_cache import as_list
from ..request import Request, Tensors, is_one
from ..step import Action, CallOptions, plan_plain
from .chunks import ONE_IN, ONE_OUT, Vector, flat
from .hosts_plan import At, Home, Inside, Leg, SpanPlan, Wave
from .inside_a_host import View, inside_request

if TYPE_CHECKING:
    from ....hosts.span import Span

_TAG_ODD, _TAG_MASK = 0x9E3779B97F4A7C15, (1 << 30) - 1
_SCRATCH = "made", "fetched", "given", "result"

_KEPT, _KEPT_BYTES = 1024, 64 << 20
"""How many calls' steps a group keeps, and how much memory for messages these may have."""


class Copy(NamedTuple):
    """A copy to be made."""

    to: torch.Tensor
    source: torch.Tensor

    def make(self) -> None:
        """Make it."""
        as_bits(self.to).copy_(as_bits(self.source))


class WaveSteps(NamedTuple):
    """The steps of a wave. exchanges: for each leg. sums: the results of each leg, which an average divides."""

    before: list[Action]
    brings: list[Copy]
    exchanges: list[Exchange]
    sums: list[list[torch.Tensor]]
    after: list[Action]
    copies: list[Copy]


class _Memory(NamedTuple):
    """Scratch memory, as tensors of the call's dtype. given, result: the copies of the user's tensors, if it has any.

    With a call in place they are one.
    """

    made: torch.Tensor
    fetched: torch.Tensor
    given: torch.Tensor
    result: torch.Tensor


def steps_of(
    group: Group, span: Span, plan: SpanPlan, request: Request, inp: Tensors, out: Tensors, allowed_s: float
) -> Steps:
    """The steps of this rank's current call, all of whose neighbours have entered it.

    Calls with even and with odd numbers take turns: messages of the last call may still leave while this one begins;
    those of the last but one have arrived, because every rank has entered the last one.
    """
    number = group.host.call_number
    where = (inp is None, out is None) if plan.copied else (*_addresses(inp), None, *_addresses(out))
    key = plan, number & 1, allowed_s, where
    steps = span.kept.get(key)
    if isinstance(steps, Steps):
        span.kept[key] = span.kept.pop(key)  # the last used are the last in it
        steps.again(number)
    else:
        steps = _new_steps(group, span, plan, request, inp, out, allowed_s)
        steps.kept = steps.nbytes <= _KEPT_BYTES
        if steps.kept:
            span.kept[key] = steps
            _make_room(span)
    if plan.copied:
        steps.inp.take(inp)
    return steps


def _new_steps(
    group: Group, span: Span, plan: SpanPlan, request: Request, inp: Tensors, out: Tensors, allowed_s: float
) -> Steps:
    me, turn, kind = group.rank, group.host.call_number & 1, request.collective
    own_in, own_out = (me if kind in of else None for of in (ONE_IN, ONE_OUT))
    first, end = plan.waves[0], plan.waves[-1]
    items = [end.made.end, end.fetched.end, 0, 0]
    if plan.copied:
        items[2:] = _items(first.given.lengths, inp, own_in), _items(first.result.lengths, out, own_out)
    memory = _Memory(*_scratch(span, items, plain_dtype(request.like.dtype), turn))
    if plan.copied:
        here = memory.given, memory.given if request.in_place else memory.result
        given: Tensors = None if inp is None else here[0]
        result: Tensors = None if out is None else here[1]
    else:
        given, result = _borrowed(inp), _borrowed(out)
    vectors = Vector(first.given.lengths, given, own_in), Vector(first.result.lengths, result, own_out)
    return _Maker(group, span, plan, request, memory, allowed_s).make(*vectors)


def _addresses(tensors: Tensors) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in as_list(tensors))


def _borrowed(tensors: Tensors) -> Tensors:
    """The same memory, which these tensors do not keep alive."""
    if tensors is None:
        return None
    return borrowed(flat(tensors)) if is_one(tensors) else [borrowed(flat(tensor)) for tensor in tensors]


def _make_room(span: Span) -> None:
    while len(span.kept) > _KEPT or sum(steps.nbytes for steps in span.kept.values()) > _KEPT_BYTES:
        span.kept.pop(next(iter(span.kept))).close()


def forget_all(span: Span) -> list[torch.Tensor]:
    """A call has failed: later ones use none of the memory of this one. Returns what was its scratch memory."""
    span.kept.clear()
    memory = [span.resources.pop(("scratch", name, turn), None) for name, turn in product(_SCRATCH, (0, 1))]
    return [tensor for tensor in memory if tensor is not None]


def _items(lengths: Sequence[int], tensors: Tensors, own: int | None) -> int:
    """The elements of all blocks that a rank has."""
    return 0 if tensors is None else sum(lengths) if own is None else lengths[own]


def _scratch(span: Span, items: Iterable[int], dtype: torch.dtype, turn: int) -> Iterator[torch.Tensor]:
    """Memory of so many elements each. Where there has to be more, steps that are in the old one are not kept."""
    for name, count in zip(_SCRATCH, items, strict=True):
        key, nbytes = ("scratch", name, turn), count * max(1, dtype.itemsize)
        memory: Any = span.resources.get(key)
        if memory is None or memory.numel() < nbytes:
            memory = span.resources[key] = torch.empty(max(nbytes, 1 << 12), dtype=torch.uint8, device="cpu")
            for old in [old for old in span.kept if old[1] == turn]:
                span.kept.pop(old).close()
        yield memory[:nbytes].view(dtype)


class Steps:
    """The steps of one call. inp, out: the vectors that it reads and writes. kept: will they be used again?"""

    def __init__(self, inp: Vector, out: Vector, waves: list[WaveSteps]) -> None:
        self.inp, self.out, self.waves = inp, out, waves
        self.kept = False

    @property
    def nbytes(self) -> int:
        """The memory that they have for messages by now: their second call takes more, for what it sends."""
        return sum(exchange.nbytes for exchange in self.exchanges)

    @property
    def exchanges(self) -> list[Exchange]:
        """Those of all waves."""
        return [exchange for wave in self.waves for exchange in wave.exchanges]

    def again(self, number: int) -> None:
        """Be the steps of the call of this number, too."""
        for exchange in self.exchanges:
            exchange.again(number)

    def close(self) -> None:
        """Give memory back, as soon as no message needs it any more."""
        for exchange in self.exchanges:
            exchange.close()


class Tags(NamedTuple):
    """The tags of a plan's messages. gid: of the group."""

    gid: int
    signature: int

    def of(self, leg: Leg, number: int, round_: int, index: int) -> int:
        """In the call of this number only."""
        return _tag(digest(self.gid, number, self.signature, leg.number), round_, index)

    def standing(self, leg: Leg, turn: int, round_: int) -> int:
        """In all calls with even numbers, or in all with odd ones."""
        return _tag(digest(self.gid, "turn", turn, self.signature, leg.number), round_, 0)


def _tag(base: int, round_: int, index: int) -> int:
    return (base + (round_ << 8) + index) * _TAG_ODD >> 20 & _TAG_MASK


class _Maker:
    """Makes steps. They hold neither the group nor its span, which hold them."""

    def __init__(
        self, group: Group, span: Span, plan: SpanPlan, request: Request, memory: _Memory, allowed_s: float
    ) -> None:
        self._group, self._span, self._request, self._memory, self._allowed_s = group, span, request, memory, allowed_s
        self._plan, self._tags = plan, Tags(span.gid, plan.signature)
        self._empty = memory.made[:0]
        self._rows = 0
        """Of the exchanges that have been made."""

    def make(self, inp: Vector, out: Vector) -> Steps:
        """The steps on these vectors."""
        self._inp, self._out = inp, out
        return Steps(inp, out, [self._wave(number, wave) for number, wave in enumerate(self._plan.waves)])

    def _wave(self, number: int, wave: Wave) -> WaveSteps:
        view = partial(self._view, wave)
        return WaveSteps(
            [*self._parts(wave.before, view)],
            [Copy(view(at._replace(place=Home.MADE)), view(at)) for leg in wave.legs for at in leg.brings],
            [self._exchange(number, leg, view) for leg in wave.legs],
            [[*map(view, leg.results)] for leg in wave.legs],
            [*self._parts(wave.after, view)],
            [Copy(view(at._replace(place=Home.RESULT)), view(at)) for at in wave.copies],
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

    def _parts(self, parts: Iterable[Inside], view: View) -> Iterator[Action]:
        """This host's parts."""
        seat = self._span.here.index(self._group.rank)
        for part in parts:
            if any(part.sizes):
                how = CallOptions(weakref.ref(self._local()), False, part.algorithm, self._allowed_s)
                yield plan_plain(how, inside_request(part, self._request, seat, view, self._empty))

    def _local(self) -> Group:
        """The group of this host's ranks, which all have entered this call."""
        if self._span.local is None:
            members = [self._group.world_ranks[rank] for rank in self._span.here]
            name = f"{self._group.name} on one host"
            seat = self._span.here.index(self._group.rank)
            self._span.local = make_sub_group(self._group, seat, members, name, self._allowed_s, in_call=True)
        local: Group = self._span.local
        return local

    def _exchange(self, wave: int, leg: Leg, view: View) -> Exchange:
        op, combine = self._request.op, None
        if isinstance(op, str | CustomOp):
            kernel = combiner(dtype_name(self._request.like.dtype), "sum" if op == "avg" else op)

            def combine(out: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
                kernel(out, [first, second])

        def side(places: Sequence[At | None]) -> list[torch.Tensor]:
            return [self._empty if at is None else view(at) for at in places]

        peers = [self._group.world_ranks[peer] for peer in leg.peers]
        kept, fetched = (side(places) if any(leg.kept[X]) or any(leg.kept[Y]) else [] for places in leg.kept)
        given, final = (side(places) if places else None for places in (leg.given, leg.final))
        number, carrier, standing = self._group.host.call_number, self._span.carrier, None
        if carrier.own_thread:
            standing = PersistentReceive(ReceiveBuffers.of(carrier), partial(self._tags.standing, leg, number & 1))
        return Exchange(
            carrier, leg.program, peers, kept, combine, number, partial(self._tags.of, leg),
            standing=standing, journal=self._journal(wave, leg), y=fetched, t=leg.temporary, given=given, final=final,
        )  # fmt: skip

    def _journal(self, wave: int, leg: Leg) -> Journal:
        first, self._rows = self._rows, self._rows + len([*leg.program.steps()])
        host = self._group.host
        return Journal(lambda: host.row_writer, wave, first)
