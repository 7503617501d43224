"""A call over hosts as one value: its parts, each a collective among some ranks, and the table that they make."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

import numpy as np

from ....base.errors import ArgumentError
from ...combine import by_round, numbered, renamed, seq, transpose
from ...contract import BLOCKED, DUALS
from ...counts import Levels, levels_of
from ...hosts import Hosts
from ...table import ROUND, Rows, Schedule, expand, unwrap
from .. import broadcast
from ..catalogue import CATALOGUE

_INSIDE = {"broadcast": "linear", "reduce": "linear", "scatter": "linear", "gather": "linear"}
"""Collective -> the algorithm inside a host if a part names none; for the other collectives it is `direct`."""

Block = tuple[int, ...]

_FEW = 64  # of more members, the rows of the first one stand for all if all do the same

SEGMENTED = ("circulant", "chain")
"""These broadcasts, and reduces, cut the vector into any number of segments."""


@dataclass(frozen=True)
class Part:
    """One collective among some ranks.

    members: the ranks; member i takes the part of rank i.
    blocks: chunks of the whole vector. Collectives with blocks have one block per member, which may be empty; sizes
    may differ. Other collectives have one, with the chunks in the order in which it is cut.
    root: an index into `members`.
    algorithm: a name in the catalogue; None inside a host, where every rank reaches every other in one step.
    """

    collective: str
    members: tuple[int, ...]
    blocks: tuple[Block, ...]
    root: int = 0
    algorithm: str | None = None

    @property
    def name(self) -> str:
        return self.algorithm or _INSIDE.get(self.collective, "direct")

    @cached_property
    def table(self) -> Schedule:
        """The table of the part: members are the ranks 0 .. n-1, and its chunks are `cells`."""
        cuts = 1 if self.collective in BLOCKED else len(self.blocks[0])
        return _table(self.collective, self.name, len(self.members), self.root, cuts)

    @property
    def cells(self) -> tuple[Block, ...]:
        """For each chunk of the table, the chunks of the whole that are in it."""
        if self.collective in BLOCKED:
            return self.blocks
        (block,) = self.blocks
        each = len(block) // self.table.chunks
        return tuple(block[k * each : (k + 1) * each] for k in range(self.table.chunks))

    def moved(self, cells: tuple[Block, ...]) -> Rows:
        """The rows of the table, with the ranks of the whole, that move anything of these cells; see `renamed`."""
        full = [number for number, cell in enumerate(cells) if cell]
        rows: Rows = unwrap(self.table) if len(full) == len(cells) else expand(self.table, full)
        return renamed(rows, self.members, cells)

    def rows(self, only: Callable[[Block], Block]) -> Rows:
        """The rows of the part in the whole, as `on` makes them. only: the chunks of a cell that count."""
        cells = tuple(map(only, self.cells))
        return numbered(self.moved(cells), cells)


@lru_cache(maxsize=256)
def _table(collective: str, name: str, ranks: int, root: int, cuts: int) -> Schedule:
    """The table of an algorithm. cuts: into how many chunks its vector is cut, if the algorithm leaves this open."""
    if collective == "reduce":  # all of them are broadcasts transposed
        return transpose(_table("broadcast", name, ranks, root, cuts)).replace(name=f"reduce.{name}")
    if collective == "broadcast" and name in SEGMENTED:
        schedule: Schedule = getattr(broadcast, name)(ranks, root, cuts)
        return schedule.replace(name=f"{collective}.{name}")
    found = CATALOGUE[f"{collective}.{name}"]
    made = (found.symmetric(ranks) if ranks > _FEW else None) or found.schedule(ranks, root)
    if collective not in BLOCKED and cuts % made.chunks:
        raise ArgumentError(f"{made.name} cuts its vector into {made.chunks} chunks, which {cuts} do not fill")
    return made


_NONE = np.zeros((0, 9), np.int64)


@dataclass(frozen=True)
class HierarchicalTable:
    """A call of ranks on several hosts: parts inside each host, parts between hosts, parts inside each host again.

    chunks: the number of chunks of the vector; for collectives with blocks, one for each rank.
    before, after: the parts inside hosts, each among all ranks of one host. Parts of a single rank are left out.
    across: the parts between hosts, all at the same time. At least one rank of each host takes part.
    name: the full name of its table.
    """

    collective: str
    hosts: Hosts
    root: int
    chunks: int
    before: tuple[Part, ...]
    across: tuple[Part, ...]
    after: tuple[Part, ...]
    name: str = ""

    @property
    def phases(self) -> tuple[tuple[Part, ...], ...]:
        """Its parts: before, across, after."""
        return self.before, self.across, self.after

    @cached_property
    def _whole(self) -> Schedule:
        return self._made(lambda block: block)

    def schedule(self, chunks: Sequence[int] | None = None) -> Schedule:
        """The one table of all ranks, which keeps the contract of the collective: before, across, after.

        chunks: only the rows that move these, so that there may be many ranks; see `prove`.
        """
        if chunks is None:
            return self._whole
        wanted = set(chunks)
        return self._made(cache(lambda block: tuple(chunk for chunk in block if chunk in wanted)))  # parts share blocks

    def _made(self, only: Callable[[Block], Block]) -> Schedule:
        rows = (by_round([_NONE, *(part.rows(only) for part in parts)]) for parts in self.phases)
        table = Schedule(self.hosts.ranks, self.chunks, _NONE, self.collective, "", self.root)
        return seq(*(table.replace(rows=some) for some in rows)).replace(name=self.name, hosts=self.hosts)

    def moved(self) -> list[Rows]:
        """For each phase its rows. Chunks have other numbers than in the table, so there are few, of many ranks too."""
        return [by_round([_NONE, *(part.moved(part.cells) for part in parts)]) for parts in self.phases]

    def levels(self) -> Levels:
        """Its costs by level. It makes no whole table, so there may be many ranks."""
        rows, start = self.moved(), 0
        for phase, parts in zip(rows, self.phases, strict=True):
            phase[:, ROUND] += start
            start += max((part.table.rounds for part in parts), default=0)
        return levels_of(np.concatenate(rows), self.hosts, self.chunks)


def transposed(call: HierarchicalTable) -> HierarchicalTable:
    """The call with all arrows reversed, for the dual collective: the last parts come first."""

    def parts(some: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(replace(part, collective=DUALS[part.collective]) for part in some)

    before, across, after = parts(call.after), parts(call.across), parts(call.before)
    return replace(call, collective=DUALS[call.collective], before=before, across=across, after=after)
