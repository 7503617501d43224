"""A part of a call that spans hosts: one collective among some of the ranks, on some chunks of the vector."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from types import ModuleType

import numpy as np

from ....base.errors import ArgumentError
from ...combine import transpose
from ...contract import BLOCKED
from ...hosts import Hosts
from ...table import DCHUNK, DST, ROUND, SCHUNK, SRC, N, Rows, Schedule, unwrap
from .. import all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce, reduce_scatter, scatter
from ..declare import Alike, table

_HOMES: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (all_gather, all_reduce, all_to_all, barrier, broadcast, gather, reduce, reduce_scatter, scatter)
}

_INSIDE = {"broadcast": "linear", "reduce": "linear", "scatter": "linear", "gather": "linear"}
"""What ranks of one host do where nothing is named; all others are direct, too."""


@dataclass(frozen=True)
class Part:
    """One collective among some ranks.

    members: their ranks; member i takes the part of rank i. blocks: chunks of the whole vector: one block per member
    for collectives with blocks, which may be empty and of several sizes; otherwise one, with the chunks in the order in
    which it is cut. A barrier among ranks that have nothing to send has one empty block. root: an index into `members`.
    algorithm: the name of one of the catalogue; None inside a host, where every rank reaches every other in one step.
    apart: where only ranks of different hosts send each other something; who is alone on its host keeps its own block.
    given: the table itself, in place of one of the catalogue.
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
        """The name of its algorithm."""
        return self.algorithm or _INSIDE.get(self.collective, "direct")

    @property
    def rounds(self) -> int:
        """How many rounds it takes. Where all members send something to all, the table itself may be very large."""
        one = alike(self) if self.apart else None
        return self.table.rounds if one is None else one.rounds

    @cached_property
    def table(self) -> Schedule:
        """What the members do, as the ranks 0 .. n-1. Each of its chunks is one of `cells`."""
        if self.given is not None:
            return self.given
        (block, *_) = self.blocks
        cuts = 1 if self.collective in BLOCKED else max(1, len(block))
        whole = _table(self.collective, self.name, len(self.members), self.root, cuts)
        if self.apart is None:
            return whole
        host = np.array([self.apart.host_of(rank) for rank in range(self.apart.ranks)])
        src, dst = whole.rows[:, SRC], whole.rows[:, DST]
        alone = np.bincount(host)[host[src]] == 1
        return replace(whole, rows=whole.rows[(host[src] != host[dst]) | (alone & (src == dst))])

    @property
    def cells(self) -> tuple[tuple[int, ...], ...]:
        """For each chunk of the table the chunks of the whole that it consists of."""
        if self.given is not None:
            return tuple((chunk,) for chunk in self.chunks)
        if self.collective in BLOCKED:
            return self.blocks
        (block,) = self.blocks
        each = len(block) // self.table.chunks
        return tuple(block[k * each : (k + 1) * each] for k in range(self.table.chunks))

    @property
    def moved(self) -> Rows:
        """The rows of the table with the ranks of the whole, and the numbers of chunks that they are in `chunks`.

        Rows of words, which move no chunk, are there, too.
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
            rows = _singles(rows)
        for column in (SCHUNK, DCHUNK):
            rows[:, column] = chunk[rows[:, column]]
        return _runs(rows) if scattered else rows


def width(collective: str, name: str, ranks: int) -> int:
    """Into how many chunks an algorithm cuts its vector."""
    return table(getattr(_HOMES[collective], name), ranks).chunks


def alike(part: Part) -> Schedule | None:
    """The table of a part as the rows of its first rank, if all do the same; None otherwise."""
    try:
        found = table(getattr(_HOMES[part.collective], part.name), Alike(len(part.members)))
    except (ArgumentError, TypeError):
        return None
    return found if found.symmetric else None


@lru_cache(maxsize=256)
def _table(collective: str, name: str, ranks: int, root: int, cuts: int) -> Schedule:
    """The table of an algorithm. cuts: into how many chunks its vector is cut, where the algorithm leaves that open."""
    if collective == "reduce":  # all of them are broadcasts transposed
        return replace(transpose(_table("broadcast", name, ranks, root, cuts)), name=f"reduce.{name}")
    function = getattr(_HOMES[collective], name)
    if "segments" in inspect.signature(function).parameters and collective == "broadcast":
        schedule: Schedule = function(ranks, root, cuts)
        return replace(schedule, name=f"{collective}.{name}")
    made = table(function, ranks, root)
    if collective not in BLOCKED and cuts % made.chunks:
        raise ArgumentError(f"{made.name} cuts its vector into {made.chunks} chunks, which {cuts} do not fill")
    return made


def _singles(rows: Rows) -> Rows:
    """Rows of one chunk each."""
    n = rows[:, N]
    out = np.repeat(rows, n, axis=0)
    out[:, [SCHUNK, DCHUNK]] += (np.arange(len(out)) - np.repeat(np.cumsum(n) - n, n))[:, None]
    out[:, N] = 1
    return out


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
