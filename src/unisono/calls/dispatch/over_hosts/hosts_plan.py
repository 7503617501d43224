"""The plan of a call over several hosts: the parts of this rank, and where each finds and leaves its chunks.

A long vector goes in pieces, the waves: while the messages of one are under way, ranks of a host combine the next one.

A chunk is in the user's input (GIVEN) until a part of the call has written it: to scratch memory (MADE), or, once all
hosts are known to make this call, to the user's output (RESULT). All this is known before any call is made.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import count, zip_longest
from typing import NamedTuple
from weakref import WeakValueDictionary

from ....base.errors import InternalError
from ....base.records import digest
from ....engine.compile.plan import CallPlan, shared_signature
from ....hosts.messages import MessageProgram, lower, prove_messages
from ....hosts.messages.message_program import FINAL, GIVEN, KEPT, ChunkPlace
from ....hosts.span import Span
from ....ranks.group.group import Group
from ....schedule import (
    BLOCKED,
    DBUF,
    DCHUNK,
    DST,
    HOLDERS,
    ONE_IN,
    ONE_OUT,
    SBUF,
    SCHUNK,
    SRC,
    Schedule,
    T,
    X,
    Y,
    contract,
    expand,
    prove,
)
from ....schedule.algorithms.over_hosts import HierarchicalTable, Part
from ...arguments import blank
from ..request import Request
from .chunks import Cut, Scratch, Side

_COPIED_BYTES = 1 << 20
"""Shorter tensors are copied, to memory that calls of one plan use in turn; see `hosts_steps`."""


class Home(Enum):
    """Where a chunk is."""

    GIVEN = "the user's input"
    MADE = "scratch memory"
    FETCHED = "scratch memory for results that cannot be made in place"
    RESULT = "the user's output"


class At(NamedTuple):
    """Chunks first .. last, side by side in this place."""

    first: int
    last: int
    place: Home


class Inside(NamedTuple):
    """A collective among the ranks of this host. root: the seat of its root.

    sizes: the elements of each block; for all_to_all, of each pair.
    reads, writes: the places that this rank reads and writes; by seat, if it has a block for each. None: empty block.
    """

    collective: str
    root: int
    sizes: tuple[int, ...]
    reads: tuple[At | None, ...]
    writes: tuple[At | None, ...]
    algorithm: str | None


class Leg(NamedTuple):
    """Messages of this rank to ranks of other hosts, and theirs to it.

    number: differs among the legs of a call.
    peers: the ranks of the group that take part.
    places: where the chunks of the program's buffers X and Y are: in scratch memory, or, if this leg itself reads the
    user's input or writes the user's output, there.
    brings: the chunks of the user's input to copy to scratch memory before.
    temporary: the elements of each chunk of buffer T, if the program has one.
    results: where the sums of all ranks are in the end.
    """

    number: int
    program: MessageProgram
    peers: tuple[int, ...]
    places: Mapping[ChunkPlace, At]
    brings: tuple[At, ...]
    temporary: tuple[int, ...]
    results: tuple[At, ...]


class Wave(NamedTuple):
    """A piece of the vector on its way.

    layouts: where its chunks are in the tensors and in scratch memory.
    copies: parts of the result that are still elsewhere when all parts have been made.
    """

    layouts: Mapping[Home, Cut | Scratch]
    before: tuple[Inside, ...]
    legs: tuple[Leg, ...]
    after: tuple[Inside, ...]
    copies: tuple[At, ...]


PLANS: "WeakValueDictionary[int, SpanPlan]" = WeakValueDictionary()
"""`address` -> plan."""
_numbers = count(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SpanPlan(CallPlan):
    """A call over several hosts, as one rank makes it: `Relay` finds it by its address, which is only a number.

    request: the call, without tensors.
    inp, out: the form of the tensors; if the plan is not `shared`, the call works on copies of them.
    made, fetched: the elements of scratch memory.
    rounds: the most rounds of a table between hosts.
    has_insides: are there parts inside this host?
    beside: the other ranks of this host.
    waits_for: the ranks beside this one that have legs: their messages tell that every host has entered the call.
    """

    request: Request
    waves: tuple[Wave, ...]
    inp: Side
    out: Side
    made: int
    fetched: int
    rounds: int
    has_insides: bool
    beside: tuple[int, ...]
    waits_for: tuple[int, ...]

    def __post_init__(self) -> None:
        """Register the plan in `PLANS`."""
        PLANS[self.address] = self


def plan_span(
    group: Group, span: Span, request: Request, spanning: HierarchicalTable, pieces: int, why: str
) -> SpanPlan:
    """The plan of this rank for a request. pieces: see `Cut`. The tables are proved at their first use."""
    whole, me, ranks = _proved(spanning), group.rank, group.size
    pairs = request.collective == "all_to_all"
    given = Cut.of(request, spanning.chunks, ranks, range(me * ranks, (me + 1) * ranks) if pairs else None)
    result = Cut.of(request, spanning.chunks, ranks, range(me, ranks * ranks, ranks)) if pairs else given
    item = max(1, request.like.element_size())
    waves: list[Wave] = []
    made = fetched = 0
    for piece in range(pieces):
        given, result = (cut._replace(piece=piece, pieces=pieces) for cut in (given, result))
        maker = _Maker(whole, me, span.here, request, given)
        before = tuple(maker.insides(spanning.before, early=True))
        across = [part for part in spanning.across if piece == 0 or part.collective != "barrier"]  # words go once
        legs = tuple(maker.legs(across, piece * len(spanning.across)))
        after = tuple(maker.insides(spanning.after, early=False))
        mine, theirs = Scratch(given, maker.scratch(X), item, made), Scratch(result, maker.scratch(Y), item, fetched)
        made, fetched = mine.end, theirs.end
        layouts: dict[Home, Cut | Scratch] = {
            Home.GIVEN: given,
            Home.RESULT: result,
            Home.MADE: mine,
            Home.FETCHED: theirs,
        }
        waves.append(Wave(layouts, before, legs, after, tuple(maker.copies())))
    on_rails = {rank for part in spanning.across for rank in part.members}
    record = request.record._replace(algorithm=f"{whole.name} over {spanning.hosts.text}")
    agreed = record, digest(whole.root, whole.rows.tobytes()), request.like.numel(), item, request.extents, pieces
    signature = shared_signature(*agreed)
    own_in, own_out = (me if request.collective in of else None for of in (ONE_IN, ONE_OUT))
    beside = tuple(rank for rank in span.here if rank != me)
    plan = SpanPlan(
        address=next(_numbers), record=record, nbytes=request.like.numel() * item, signature=signature,
        shared=request.like.nbytes >= _COPIED_BYTES, writes=bool(request.written_on(me)), why=why, waves=tuple(waves),
        request=request._replace(
            like=blank(request.like.numel(), request.like.dtype), inp=None, out=None, says=request.record
        ),
        inp=Side.of(given, item, own_in, request.inp), out=Side.of(result, item, own_out, request.out),
        made=made, fetched=fetched, rounds=max((part.table.rounds for part in spanning.across), default=0),
        has_insides=any(any(part.sizes) for wave in waves for part in (*wave.before, *wave.after)), beside=beside,
        waits_for=tuple(rank for rank in beside if rank in on_rails),
    )  # fmt: skip
    return replace(plan, note=group.engine.note_plan(plan))


@lru_cache(maxsize=256)
def _proved(spanning: HierarchicalTable) -> Schedule:
    whole = spanning.schedule()
    prove(whole)
    return whole


@lru_cache(maxsize=1024)
def _programs(table: Schedule) -> tuple[MessageProgram, ...]:
    programs = lower(table)
    prove_messages(table, programs)
    return programs


def _used(table: Schedule, rank: int) -> set[tuple[int, int]]:
    """The slots of a rank that a table reads or writes: buffers and chunks."""
    rows = expand(table)
    read, written = rows[rows[:, SRC] == rank], rows[rows[:, DST] == rank]
    return {*map(tuple, read[:, [SBUF, SCHUNK]].tolist()), *map(tuple, written[:, [DBUF, DCHUNK]].tolist())}


_SCRATCH = {X: Home.MADE, Y: Home.FETCHED}


class _Maker:
    """Follows the chunks of one rank through the parts of a call."""

    def __init__(self, whole: Schedule, me: int, here: Sequence[int], request: Request, cut: Cut) -> None:
        self._me, self._here, self._request, self._cut = me, list(here), request, cut
        kept = contract(whole)
        self._final = {(buffer, chunk) for rank, buffer, chunk in kept.after if rank == me}
        self._at = {(buffer, chunk): Home.GIVEN for rank, buffer, chunk in kept.before if rank == me}
        self._runs_made: dict[int, list[list[int]]] = {X: [], Y: []}
        self._kept: dict[int, set[int]] = {X: set(), Y: set()}

    def insides(self, parts: Iterable[Part], *, early: bool) -> Iterator[Inside]:
        """This host's parts. early: other hosts may make another call, so the user's output is not written."""
        for part in parts:
            if part.members[0] not in self._here or part.collective == "barrier":
                continue  # to wait for all ranks of the host, before and after the messages, is a barrier
            seats = [self._here.index(member) for member in part.members]
            if part.collective not in BLOCKED:
                for run in self._runs(part.blocks[0]):
                    yield self._inside(part, seats[part.root], [run], early)
                continue
            blocks: list[tuple[int, ...]] = [()] * len(self._here)
            for seat, block in zip(seats, part.blocks, strict=True):
                blocks[seat] = block
            for runs in zip_longest(*map(self._runs, blocks)):
                yield self._inside(part, seats[part.root], runs, early)

    def _inside(self, part: Part, root: int, runs: Sequence[tuple[int, int] | None], early: bool) -> Inside:
        kind, seat = part.collective, self._here.index(self._me)
        held = {"all": range(len(runs)), "owner": [seat], "root": range(len(runs) if seat == root else 0)}
        reads, writes = (held[who] for who in HOLDERS.get(kind, ("all", "all")))
        if kind == "broadcast" and seat == root:
            writes = []
        result = Y if kind == "all_to_all" else X
        found = [self._found(run) if k in reads else None for k, run in enumerate(runs)]
        left = [self._left(run, result, early) if k in writes else None for k, run in enumerate(runs)]
        return Inside(kind, root, self._sizes(kind, runs), tuple(found), tuple(left), part.algorithm)

    def _sizes(self, kind: str, runs: Sequence[tuple[int, int] | None]) -> tuple[int, ...]:
        if kind == "all_to_all" and self._request.extents is not None:
            ranks = len(self._cut.lengths)
            return tuple(self._request.extents[s * ranks + d] for s in self._here for d in self._here)
        sizes = [sum(map(self._cut.size, range(run[0], run[1] + 1))) if run else 0 for run in runs]
        return tuple(sizes * len(runs) if kind == "all_to_all" else sizes)

    def _runs(self, chunks: Sequence[int]) -> list[tuple[int, int]]:
        """Chunks of one block, one behind the other, as one run."""
        runs: list[tuple[int, int]] = []
        for chunk in chunks:
            if runs and runs[-1][1] == chunk - 1 and chunk % self._cut.per_block:
                runs[-1] = runs[-1][0], chunk
            else:
                runs.append((chunk, chunk))
        return runs

    def _found(self, run: tuple[int, int] | None) -> At | None:
        if run is None:
            return None
        places = {self._at[X, chunk] for chunk in range(run[0], run[1] + 1)}
        if len(places) != 1:
            raise InternalError(f"chunks {run[0]} to {run[1]} are not in one place")
        return At(*run, places.pop())

    def _left(self, run: tuple[int, int] | None, buffer: int, early: bool) -> At | None:
        if run is None:
            return None
        chunks = range(run[0], run[1] + 1)
        final = not early and all((buffer, chunk) in self._final for chunk in chunks)
        place = Home.RESULT if final else Home.MADE if buffer == X else Home.FETCHED
        for chunk in chunks:
            self._at[buffer, chunk] = place
        self._kept[buffer] |= set(chunks) if place is not Home.RESULT else set()
        return At(*run, place)

    def legs(self, parts: Iterable[Part], first: int) -> Iterator[Leg]:
        """This rank's parts between hosts. first: their first number."""
        for number, part in enumerate(parts, first):
            if self._me in part.members:
                yield self._leg(number, part, lends=True)

    def _leg(self, number: int, part: Part, *, lends: bool) -> Leg:
        index, table, cells = part.members.index(self._me), part.table, part.cells
        program = _programs(table)[index]
        used = sorted(_used(table, index)) if part.collective != "barrier" else []
        has_temporary = any(buffer == T for buffer, _ in used)
        brings: list[At] = []
        kept, given, final = (dict[tuple[int, int], At]() for _ in range(3))
        for buffer, k in used:
            cell, slot = cells[k], (buffer, k)
            if buffer == T or not cell:
                continue
            homes = {self._at.get((buffer, chunk)) for chunk in cell}
            kept[slot] = At(cell[0], cell[-1], _SCRATCH[buffer])
            one = lends and len(homes) == len(self._runs(cell)) == 1
            if one and Home.GIVEN in homes:
                given[slot] = At(cell[0], cell[-1], Home.GIVEN)
            elif Home.GIVEN in homes:
                brings += [At(chunk, chunk, Home.GIVEN) for chunk in cell if self._at[buffer, chunk] is Home.GIVEN]
            if one and program.ends.get(slot) == FINAL and all((buffer, chunk) in self._final for chunk in cell):
                final[slot] = At(cell[0], cell[-1], Home.RESULT)
        ends_at = {slot: (final if slot in program.ends else given).get(slot, at).place for slot, at in kept.items()}
        at = {(slot[0], chunk): place for slot, place in ends_at.items() for chunk in cells[slot[1]]}
        if lends and not self._in_one_place(at):
            return self._leg(number, part, lends=False)
        self._at |= at
        for buffer in (X, Y):
            self._runs_made[buffer].append([chunk for slot in kept if slot[0] == buffer for chunk in cells[slot[1]]])
        lies = {GIVEN: ChainMap(given, kept), KEPT: kept, FINAL: ChainMap(final, kept)}
        return Leg(
            number, program, part.members,
            {ChunkPlace(*slot, where): at[slot] for where, at in lies.items() for slot in kept}, tuple(brings),
            tuple(sum(map(self._cut.size, cell)) for cell in cells) if has_temporary else (),
            tuple(lies[FINAL][slot] for slot in kept if program.ends.get(slot) == FINAL),
        )  # fmt: skip

    def _in_one_place(self, at: Mapping[tuple[int, int], Home]) -> bool:
        """Does each run of chunks lie in one place?"""
        for buffer in (X, Y):
            for first, last in self._runs(sorted(chunk for where, chunk in at if where == buffer)):
                if len({at[buffer, chunk] for chunk in range(first, last + 1)}) > 1:
                    return False
        return True

    def scratch(self, buffer: int) -> list[list[int]]:
        """The chunks of a buffer in scratch memory: each leg's side by side, then chunks that stay on this host."""
        runs = self._runs_made[buffer]
        return [*runs, sorted(self._kept[buffer].difference(*runs))]

    def copies(self) -> Iterator[At]:
        """The chunks that remain to be copied to the user's output."""
        if not self._request.written_on(self._me):
            return
        for buffer, chunk in sorted(self._final):
            place = self._at[buffer, chunk]
            if place is not Home.RESULT and not (place is Home.GIVEN and self._request.in_place):
                yield At(chunk, chunk, place)
