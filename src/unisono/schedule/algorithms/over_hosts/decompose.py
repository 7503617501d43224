"""`spanning`: the parts of a collective over hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from ....base.errors import ArgumentError
from ....base.units import plural
from ...contract import BLOCKED, DUALS, ROOTED
from ...hosts import Hosts
from ...moves import check_rows
from ...table import Schedule, spread
from ..broadcast import SEGMENTS
from . import parts
from .whole import HierarchicalTable, Part, transposed, width

CORES: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("circulant", "recursive_doubling", "rabenseifner", "ring", "two_shot"),
    "broadcast": ("circulant", "binomial", "chain", "linear"),
    "reduce": ("circulant", "binomial", "chain", "linear"),
    "all_gather": ("circulant", "bruck", "ring", "direct"),
    "reduce_scatter": ("circulant", "bruck", "ring", "direct"),
    "scatter": ("linear",),
    "gather": ("linear",),
    "all_to_all": ("direct", "pairwise"),
    "barrier": ("dissemination", "direct"),
}
"""Collective -> the algorithms that may run between hosts. The first is for many bytes, and the default."""

RAILED = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Collectives that have rails."""

_CUT, _SEGMENTED = ("broadcast", "reduce"), ("circulant", "chain")
"""These algorithms of these collectives cut the vector into any number of segments."""


@lru_cache(maxsize=256)
def spanning(
    collective: str,
    hosts: Hosts,
    root: int = 0,
    *,
    rails: int | None = None,
    core: str | None = None,
    segments: int | None = None,
) -> HierarchicalTable:
    """The parts of a collective over hosts.

    rails: how many ranks of each host take part between hosts, each with a slice; by default as many as each host has.
    scatter, gather, all_to_all and barrier have no rails.
    core: the algorithm between hosts, one of `CORES`.
    segments: into how many the slice of a rail is cut, for the circulant and chain forms of broadcast and reduce.

    Raises ArgumentError for what does not exist.
    """
    _check(collective, hosts, root, rails, core)
    if segments is not None and segments < 1:
        raise ArgumentError(f"{collective}: {segments} segments are none")
    rails, core = rails or hosts.rails, core or CORES[collective][0]
    name = spanning_name(collective, hosts, rails, core, segments)
    return replace(_made(collective, hosts, root, rails, core, segments), name=name)


def spanning_name(collective: str, hosts: Hosts, rails: int | None, core: str, segments: int | None) -> str:
    """The full name of a table over hosts: `all_reduce.spanning ring ×8`. Different parts have different names."""
    many = f" ×{rails or hosts.rails}" if collective in RAILED else ""
    cut = f" in {plural(segments or SEGMENTS, 'segment')}" if collective in _CUT and core in _SEGMENTED else ""
    return f"{collective}.spanning {core}{many}{cut}"


def _made(collective: str, hosts: Hosts, root: int, rails: int, core: str, segments: int | None) -> HierarchicalTable:
    n = len(hosts.members)
    match collective:
        case "all_reduce":
            return parts.all_reduce(hosts, rails, core, width("all_reduce", core, n))
        case "broadcast":
            cut = (segments or SEGMENTS) if core in _SEGMENTED else width("broadcast", core, n)
            return parts.broadcast(hosts, root, rails, core, cut)
        case "all_gather":
            return parts.all_gather(hosts, rails, core)
        case "scatter":
            return parts.scatter(hosts, root, core)
        case "all_to_all":
            return parts.all_to_all(hosts, core)
        case "barrier":
            return parts.barrier(hosts, core)
    return transposed(_made(DUALS[collective], hosts, root, rails, core, segments))


def _check(collective: str, hosts: Hosts, root: int, rails: int | None, core: str | None) -> None:
    if collective not in CORES:
        raise ArgumentError(f"{collective!r} has no table over hosts; there are: {', '.join(CORES)}")
    if core is not None and core not in CORES[collective]:
        known = ", ".join(CORES[collective])
        raise ArgumentError(f"{collective}: between hosts there is no algorithm {core!r}; there are: {known}")
    if rails is not None and not 1 <= rails <= hosts.rails:
        raise ArgumentError(f"{collective}: {rails} rails are not between 1 and {hosts.rails}, what each host has")
    if collective in ROOTED and not 0 <= root < hosts.ranks:
        raise ArgumentError(f"{collective}: root {root} is not one of the ranks 0 to {hosts.ranks - 1}")


@lru_cache(maxsize=256)
def flat(schedule: Schedule, hosts: Hosts) -> HierarchicalTable:
    """A table of all ranks as one part between hosts: ranks of one host send each other messages, too.

    This serves every table that was not made for hosts. It is slower than `spanning`.
    """
    check_rows(schedule)
    table, ranks = spread(schedule), tuple(range(schedule.ranks))
    each = table.chunks // table.ranks
    blocks: tuple[tuple[int, ...], ...] = (tuple(range(table.chunks)),)
    if table.collective in BLOCKED:
        blocks = tuple(tuple(range(rank * each, (rank + 1) * each)) for rank in ranks)
    part = Part(table.collective, ranks, blocks, table.root, table.name, given=table)
    call = HierarchicalTable(
        table.collective, hosts, table.root, table.chunks, table.result, (), (part,), (), table.name
    )
    if all(len(heard) == len(hosts.members) for heard in call.heard()):
        return call
    words = Part("barrier", tuple(host[0] for host in hosts.members), ((),), 0, "dissemination")
    return replace(call, across=(part, words))
