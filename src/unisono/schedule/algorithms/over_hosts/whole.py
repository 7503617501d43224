"""A call over hosts as one value: its parts, each a collective among some ranks, and the table that they make."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np

from ....base.errors import ArgumentError
from ...combine import by_round, seq, transpose
from ...contract import BLOCKED, DUALS
from ...counts import Levels, levels_of
from ...hosts import Hosts
from ...table import DCHUNK, DST, ROUND, SCHUNK, SRC, N, Rows, Schedule, X, expand, singles, unwrap
from .. import broadcast
from ..catalogue import CATALOGUE

_INSIDE = {"broadcast": "linear", "reduce": "linear", "scatter": "linear", "gather": "linear"}
"""Collective -> the algorithm inside a host if a part names none; for the other collectives it is `direct`."""

Block = tuple[int, ...]
Places = list[tuple[int, int]]

_FEW = 64  # of more members, the rows of the first one stand for all if all do the same

SEGMENTED = ("circulant", "chain")
"""These broadcasts, and reduces, cut the vector into any number of segments."""


@dataclass(frozen=True)
class Part:
    """One collective among some ranks.

    members: the ranks; member i takes the part of rank i.
    blocks: chunks of the whole vector. Collectives with blocks have one block per member, which may be empty; sizes
    may differ. Other collectives have one, with the chunks in the order in which it is cut. A barrier of ranks that
    have nothing to send has one empty block.
    root: an index into `members`.
    algorithm: a name in the catalogue; None inside a host, where every rank reaches every other in one step.
    apart: the hosts, if only ranks of different hosts send to each other. A rank alone on its host keeps its own block.
    given: a table to use in place of an algorithm of the catalogue.
    """

    collective: str
    members: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    root: int = 0
    algorithm: str | None = None
    apart: Hosts | None = None
    given: Schedule | None = None

    @property
    def chunks(self) -> tuple[int, ...]:
        """All its chunks of the whole, in the order of its blocks."""
        return tuple(chain.from_iterable(self.blocks))

    @property
    def name(self) -> str:
        return self.algorithm or _INSIDE.get(self.collective, "direct")

    @property
    def rounds(self) -> int:
        """The number of rounds, without making the table, which is very large where all members send to all."""
        one = self.symmetric if self.apart else None
        return self.table.rounds if one is None else one.rounds

    @property
    def symmetric(self) -> Schedule | None:
        """The table as the rows of its first rank, if all ranks do the same; None otherwise."""
        return CATALOGUE[f"{self.collective}.{self.name}"].symmetric(len(self.members))

    @cached_property
    def table(self) -> Schedule:
        """The table of the part. Members are the ranks 0 .. n-1, and its chunks are `cells`."""
        if self.given is not None:
            return self.given
        (block, *_) = self.blocks
        cuts = 1 if self.collective in BLOCKED else max(1, len(block))
        whole = _table(self.collective, self.name, len(self.members), self.root, cuts)
        return whole.replace(rows=self._between(whole.rows))

    def _between(self, rows: Rows) -> Rows:
        """The rows of the table that the part has, if only ranks of different hosts send to each other."""
        if self.apart is None:
            return rows
        host = np.array(self.apart.places)
        src, dst = rows[:, SRC], rows[:, DST]
        alone = np.bincount(host)[host[src]] == 1
        kept: Rows = rows[(host[src] != host[dst]) | (alone & (src == dst))]
        return kept

    @property
    def cells(self) -> tuple[tuple[int, ...], ...]:
        """For each chunk of the table, the chunks of the whole that are in it."""
        if self.given is not None:
            return tuple((chunk,) for chunk in self.chunks)
        if self.collective in BLOCKED:
            return self.blocks
        (block,) = self.blocks
        each = len(block) // self.table.chunks
        return tuple(block[k * each : (k + 1) * each] for k in range(self.table.chunks))

    @property
    def moved(self) -> Rows:
        """The rows of the table, with the ranks of the whole. A chunk's number is its place in `chunks`.

        Rows of words, which move no chunk, are included.
        """
        rows: Rows = unwrap(self.table).copy()
        end = np.cumsum([0, *map(len, self.cells)])
        rows[:, N] = end[rows[:, SCHUNK] + rows[:, N]] - end[rows[:, SCHUNK]]
        for column in (SRC, DST):
            rows[:, column] = np.array(self.members)[rows[:, column]]
        for column in (SCHUNK, DCHUNK):
            rows[:, column] = end[rows[:, column]]
        return rows

    @property
    def rows(self) -> Rows:
        """The rows of the table with the ranks and the chunks of the whole."""
        rows: Rows = self.moved
        chunk = np.array(self.chunks, np.int64)
        rows = rows[rows[:, N] > 0]
        scattered = bool((np.diff(chunk) != 1).any())
        if scattered:
            rows = singles(rows)
        for column in (SCHUNK, DCHUNK):
            rows[:, column] = chunk[rows[:, column]]
        return _runs(rows) if scattered else rows

    def rows_of(self, places: Callable[[Block], Places]) -> Rows:
        """The rows of some chunks of the whole, one chunk each. places: these chunks in a block, and their places."""
        found = [_NONE]
        where = [(number, *spot) for number, block in enumerate(self.blocks) for spot in places(block)]
        table = (len(self.members) > _FEW and where and self.symmetric) or self.table
        for number, chunk, place in where:
            if self.given is not None:
                cell = self.chunks.index(chunk)
            elif self.collective in BLOCKED:
                cell = number
            else:
                cell = place // (len(self.blocks[0]) // table.chunks)
            rows = self._between(expand(table, (cell,)))
            rows[:, [SRC, DST]] = np.array(self.members)[rows[:, [SRC, DST]]]
            if self.collective == "all_to_all":
                rows[:, DCHUNK] = np.array(self.chunks)[rows[:, DCHUNK]]
            else:
                rows[:, DCHUNK] = chunk
            rows[:, SCHUNK] = chunk
            found.append(rows)
        return np.concatenate(found)


@lru_cache(maxsize=256)
def _table(collective: str, name: str, ranks: int, root: int, cuts: int) -> Schedule:
    """The table of an algorithm. cuts: into how many chunks its vector is cut, if the algorithm leaves this open."""
    if collective == "reduce":  # all of them are broadcasts transposed
        return transpose(_table("broadcast", name, ranks, root, cuts)).replace(name=f"reduce.{name}")
    if collective == "broadcast" and name in SEGMENTED:
        schedule: Schedule = getattr(broadcast, name)(ranks, root, cuts)
        return schedule.replace(name=f"{collective}.{name}")
    made = CATALOGUE[f"{collective}.{name}"].schedule(ranks, root)
    if collective not in BLOCKED and cuts % made.chunks:
        raise ArgumentError(f"{made.name} cuts its vector into {made.chunks} chunks, which {cuts} do not fill")
    return made


def _runs(rows: Rows) -> Rows:
    """Rows of one chunk each, joined where both sides go on with the next chunk."""
    if not len(rows):
        return rows
    step = np.zeros(9, np.int64)
    step[[SCHUNK, DCHUNK]] = 1
    first = np.ones(len(rows), bool)
    first[1:] = (rows[1:] - rows[:-1] != step).any(axis=1)
    joined = rows[first]
    joined[:, N] = np.diff(np.append(np.flatnonzero(first), len(rows)))
    return joined[np.argsort(joined[:, ROUND], kind="stable")]


_NONE = np.zeros((0, 9), np.int64)


@dataclass(frozen=True)
class HierarchicalTable:
    """A call of ranks on several hosts: parts inside each host, parts between hosts, parts inside each host again.

    chunks: the number of chunks of the vector; for collectives with blocks, one for each rank.
    result: X or Y.
    before, after: the parts inside hosts, each among all ranks of one host. Parts of a single rank are left out.
    across: the parts between hosts, all at the same time. At least one rank of each host takes part.
    name: the full name of its table.
    """

    collective: str
    hosts: Hosts
    root: int
    chunks: int
    result: int
    before: tuple[Part, ...]
    across: tuple[Part, ...]
    after: tuple[Part, ...]
    name: str = ""

    @cached_property
    def _whole(self) -> Schedule:
        return self._made(lambda part: part.rows)

    def _made(self, rows_of: Callable[[Part], Rows]) -> Schedule:
        rows = (by_round([_NONE, *map(rows_of, parts)]) for parts in self.phases)
        table = Schedule(self.hosts.ranks, self.chunks, _NONE, self.collective, "", self.root, self.result)
        return seq(*(table.replace(rows=some) for some in rows)).replace(name=self.name, hosts=self.hosts)

    def schedule(self, chunks: Sequence[int] | None = None) -> Schedule:
        """The one table of all ranks, which keeps the contract of the collective: before, across, after.

        Barriers with an empty block have no rows in it. chunks: only the rows that move these, so that there may be
        many ranks; see `prove`.
        """
        if chunks is None:
            return self._whole
        wanted, known = set(chunks), dict[int, Places]()

        def places(block: Block) -> Places:  # many parts share a block
            if id(block) not in known:
                known[id(block)] = [(chunk, k) for k, chunk in enumerate(block) if chunk in wanted]
            return known[id(block)]

        return self._made(lambda part: part.rows_of(places))

    @property
    def rounds(self) -> int:
        """How many rounds its phases span, with the rounds that move words only."""
        return sum(max((part.rounds for part in parts), default=0) for parts in self.phases)

    def levels(self) -> Levels:
        """Its costs by level; words count as messages. It makes no whole table, so there may be many ranks."""
        if self.collective == "all_to_all":
            return self._pairs()
        rows, start = [_NONE], 0
        for parts in self.phases:
            phase = by_round([_NONE, *(part.moved for part in parts)])
            phase[:, ROUND] += start
            rows.append(phase)
            start += max((part.rounds for part in parts), default=0)
        return levels_of(np.concatenate(rows), self.hosts, self.chunks)

    def _pairs(self) -> Levels:
        """The costs of an all_to_all: every block for another host goes straight there."""
        p, sizes = self.hosts.ranks, [len(host) for host in self.hosts.members]
        away = tuple(size * (p - size) / p for size in sizes)
        inside, between = (max((part.rounds for part in parts), default=0) for parts in (self.after, self.across))
        return Levels(inside, between, away, away, p - min(sizes))

    @property
    def phases(self) -> tuple[tuple[Part, ...], ...]:
        """Its parts: before, across, after."""
        return self.before, self.across, self.after

    def heard(self) -> list[frozenset[int]]:
        """For each host, the hosts that have surely entered the call once its ranks have ended their parts across.

        A rank starts its part when all ranks of its host have entered. Each message tells which hosts its sender knows
        to have entered; empty messages do so, too.
        """
        n = len(self.hosts.members)
        known = [1 << host for host in range(n)]
        for part in self.across:
            if part.apart:
                return [frozenset(range(n))] * n  # each rank hears from every rank of other hosts
            at = [1 << self.hosts.host_of(rank) for rank in part.members]
            rows = np.unique(part.table.rows[:, [ROUND, SRC, DST]], axis=0).tolist()
            now, seen = 0, list(at)
            for number, src, dst in rows:
                if number != now:
                    now, at = number, list(seen)
                seen[dst] |= at[src]
            for rank, hosts in zip(part.members, seen, strict=True):
                known[self.hosts.host_of(rank)] |= hosts
        sets = {bits: frozenset(host for host in range(n) if bits >> host & 1) for bits in set(known)}
        return [sets[bits] for bits in known]


def transposed(call: HierarchicalTable) -> HierarchicalTable:
    """The call with all arrows reversed, for the dual collective: the last parts come first."""

    def parts(some: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(replace(p, collective=DUALS.get(p.collective, p.collective)) for p in some)

    before, across, after = parts(call.after), parts(call.across), parts(call.before)
    return replace(call, collective=DUALS[call.collective], result=X, before=before, across=across, after=after)
