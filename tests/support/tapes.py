"""The tapes of all ranks of a call over hosts, as calls make them, in one process."""

from collections.abc import Iterator, Sequence
from ctypes import c_int64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from unisono.calls.dispatch.over_hosts import hosts_steps
from unisono.calls.dispatch.over_hosts.hosts_plan import SpanPlan, plan_span
from unisono.calls.dispatch.request import Request, is_one
from unisono.engine import tape
from unisono.engine.compile.program import StateWord
from unisono.engine.tape import CopyWord, TapeWord
from unisono.hosts.messages import Room, TapeRow
from unisono.schedule import BLOCKED, HOLDERS, ONE_IN, ONE_OUT, REDUCING
from unisono.schedule.algorithms.over_hosts import HierarchicalTable

WORD = 8


class Call(NamedTuple):
    """A call. elements: of each block; of the vector, if the collective has no blocks."""

    table: HierarchicalTable
    elements: int
    pieces: int = 1
    op: str = "sum"
    in_place: bool = False
    shared: bool = True


class RankTape(NamedTuple):
    """One rank's part: its rows, the requests of its RUNs, and the addresses of all words of its input and output."""

    rank: int
    plan: SpanPlan
    rows: list[TapeRow]
    insides: list[Request]
    given: list[int]
    result: list[int]
    memory: list[Any]
    """What has the words."""


class _Inside:
    """In place of `InsideProgram`: the request only."""

    def __init__(self, _local: Any, request: Request, _algorithm: Any) -> None:
        self.request, self.arguments = request, c_int64()


def tapes_of(call: Call) -> list[RankTape]:
    """The tapes of all ranks, as calls make them, in one process."""
    return [_tape_of(call, rank) for rank in range(call.table.hosts.ranks)]


def _tape_of(call: Call, rank: int) -> RankTape:
    hosts, kind, size = call.table.hosts, call.table.collective, call.table.hosts.ranks
    like = torch.empty(call.elements, dtype=torch.int64)
    count = size if kind in BLOCKED else 1
    before, after = HOLDERS.get(kind, ("all", "all"))

    def side(holders: str, *, one: bool) -> Any:
        if holders == "root" and rank != call.table.root:
            return None
        tensors = [torch.empty_like(like) for _ in range(1 if one or kind not in BLOCKED else count)]
        return tensors if kind in BLOCKED and not one else tensors[0]

    inp: Any = None if kind == "barrier" else side(before, one=kind in ONE_IN)
    out: Any = None if kind == "barrier" else side(after, one=kind in ONE_OUT)
    if kind == "broadcast":
        inp = out = torch.empty_like(like)
    elif call.in_place and kind == "all_reduce":
        out = inp
    op = call.op if kind in REDUCING else None
    request = Request(kind, like, inp, out, op=op, root=call.table.root, in_place=inp is not None and inp is out)
    here = hosts.beside(rank)
    engine = SimpleNamespace(note_plan=lambda _: 0, state=0, words=[0] * StateWord.WORDS)
    group: Any = SimpleNamespace(state=0, rank=rank, size=size, world_ranks=range(size), engine=engine)
    carrier = SimpleNamespace(tags=1 << 30, transport=0, tapes=set(), replay=print)
    local = SimpleNamespace(rank=here.index(rank))
    span: Any = SimpleNamespace(
        here=here, local=local, carrier=carrier, gid=1, hosts=hosts, news=c_int64(), seen=c_int64()
    )
    plan = replace(plan_span(group, span, request, call.table, call.pieces, ""), shared=call.shared)
    room = Room()
    sides = tuple([] if one is None else [t.data_ptr() for t in listed(one)] for one in (inp, out))
    with patch.object(hosts_steps, "InsideProgram", _Inside):
        steps = hosts_steps._Maker(group, span, plan, 1, room).make(sides if call.shared else None)
    words = [
        [start + WORD * k for start, n in zip(starts, lengths, strict=False) for k in range(n)]
        for starts, lengths in zip(sides, (plan.inp.lengths, plan.out.lengths), strict=True)
    ]
    insides = [each.request for each in steps.insides]  # type: ignore[attr-defined]
    rows = [_at_known_places(row, sides) for row in steps.run.rows]
    return RankTape(rank, plan, rows, insides, *words, [inp, out, room, steps])


def _at_known_places(row: TapeRow, sides: Sequence[Sequence[int]]) -> TapeRow:
    """The same row, with addresses for places in the user's tensors."""
    if row.kind != tape.COPY or len(row.words) == CopyWord.NBYTES:
        return row
    to, source, nbytes, of, block = row.words
    tensor = sides[of == TapeWord.OUT][max(block - 1, 0)]
    to, source = (to, source + tensor) if of == TapeWord.IN else (to + tensor, source)
    return row._replace(words=(to, source, nbytes))


def listed(tensors: Any) -> Sequence[torch.Tensor]:
    return [tensors] if is_one(tensors) else tensors


def words_of(tensor: torch.Tensor) -> list[int]:
    return [tensor.data_ptr() + WORD * k for k in range(tensor.numel())]


def rows_without(one: RankTape, at: int) -> RankTape:
    """The same tape without a row."""
    return one._replace(rows=one.rows[:at] + one.rows[at + 1 :])


def everywhere(tapes: Sequence[RankTape]) -> Iterator[tuple[int, int, TapeRow]]:
    """All rows: rank, place and row."""
    return ((one.rank, at, row) for one in tapes for at, row in enumerate(one.rows))
