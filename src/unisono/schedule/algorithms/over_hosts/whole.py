"""A call that spans hosts as one value: its parts, and the one table that they make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...combine import DUALS, seq
from ...hosts import Hosts
from ...levels import Levels, levels_of
from ...table import DST, ROUND, SRC, Rows, Schedule, X
from .part import Part

_NONE = np.zeros((0, 9), np.int64)


@dataclass(frozen=True)
class HierarchicalTable:
    """A call of ranks on several hosts: parts inside each host, parts between hosts, parts inside each host again.

    chunks: of the vector; where there are blocks, one for each rank. result: X or Y. before, after: each is among all
    ranks of one host. across: all at the same time; of each host at least one rank takes part. Parts of a single rank
    are left out. name: the full one of its table.
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
    def phases(self) -> tuple[Schedule, Schedule, Schedule]:
        """Three tables of all ranks: before, across, after. Barriers of ranks that send nothing have no rows there."""
        name, ranks, hosts = self.name, self.hosts.ranks, self.hosts
        before, across, after = (
            Schedule(ranks, self.chunks, rows, self.collective, name, self.root, self.result, hosts=hosts)
            for rows in (_together(part.rows for part in parts) for parts in self._parts)
        )
        return before, across, after

    @cached_property
    def _whole(self) -> Schedule:
        return replace(seq(*self.phases), name=self.name)

    def schedule(self) -> Schedule:
        """The phases one after the other: the one table of all ranks, which keeps the contract of the collective."""
        return self._whole

    @property
    def rounds(self) -> int:
        """How many rounds its phases span, those of words included."""
        return sum(max((part.rounds for part in parts), default=0) for parts in self._parts)

    def levels(self) -> Levels:
        """Its costs by level; words count as messages. The whole table is not made, so there may be many ranks."""
        if self.collective == "all_to_all":
            return self._pairs()
        rows, start = [_NONE], 0
        for parts in self._parts:
            phase = _together(part.moved for part in parts)
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
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        return self.before, self.across, self.after

    def heard(self) -> list[set[int]]:
        """For each host, the hosts that have surely entered the call once its ranks have ended their parts across.

        A rank starts its part when all ranks of its host have entered. What it knows then travels with each message,
        also with those that are empty.
        """
        n = len(self.hosts.members)
        known = [1 << host for host in range(n)]
        for part in self.across:
            if part.apart:
                return [set(range(n)) for _ in range(n)]  # each rank hears from every rank of other hosts
            at = [1 << self.hosts.host_of(rank) for rank in part.members]
            rows = np.unique(part.table.rows[:, [ROUND, SRC, DST]], axis=0).tolist()
            now, seen = 0, list(at)
            for number, src, dst in rows:
                if number != now:
                    now, at = number, list(seen)
                seen[dst] |= at[src]
            for rank, hosts in zip(part.members, seen, strict=True):
                known[self.hosts.host_of(rank)] |= hosts
        return [{host for host in range(n) if bits >> host & 1} for bits in known]


def transposed(call: HierarchicalTable) -> HierarchicalTable:
    """The call with all arrows reversed, for the dual collective: what came last comes first."""

    def parts(some: Iterable[Part]) -> tuple[Part, ...]:
        return tuple(replace(p, collective=DUALS.get(p.collective, (p.collective, 0))[0]) for p in some)

    collective, _ = DUALS[call.collective]
    before, across, after = parts(call.after), parts(call.across), parts(call.before)
    return replace(call, collective=collective, result=X, before=before, across=across, after=after)


def _together(parts: Iterable[Rows]) -> Rows:
    """The rows of parts that run at the same time."""
    rows = np.concatenate([_NONE, *parts])
    return rows[np.argsort(rows[:, ROUND], kind="stable")]
