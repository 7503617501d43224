"""Tables over hosts: collectives inside each host, between hosts, and inside again. `spanning` makes them.

With one rail, one rank of each host, its leader, sends and receives for all ranks of the host. With several rails, each
is responsible for a slice of the vector. All rails send at once, and no byte leaves a host twice.

Collectives without a function here are the transposed of others. An all_to_all has none: each block goes straight to
its rank, so one table of all ranks does as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...base.errors import ArgumentError
from ...base.units import plural
from ..combine import on, par, seq, transpose
from ..contract import BLOCKED, DUALS, ROOTED
from ..hosts import Hosts
from ..table import Schedule
from . import broadcast as broadcasts
from .catalogue import CATALOGUE, SEGMENTS

CORES: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("circulant", "recursive_doubling", "rabenseifner", "ring", "two_shot"),
    "broadcast": ("circulant", "binomial", "chain", "linear"),
    "reduce": ("circulant", "binomial", "chain", "linear"),
    "all_gather": ("circulant", "bruck", "ring", "direct"),
    "reduce_scatter": ("circulant", "bruck", "ring", "direct"),
    "scatter": ("linear",),
    "gather": ("linear",),
    "barrier": ("dissemination", "direct"),
}
"""Collective -> the algorithms that may run between hosts. The first is for many bytes, and the default."""

RAILED = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Collectives that have rails."""

_SEGMENTED = ("circulant", "chain")
"""These broadcasts cut the vector into any number of segments."""

Block = Sequence[int]
"""Chunks of the vector."""


@dataclass(frozen=True)
class _Whole:
    """What the parts of a call over hosts are put into.

    chunks: the number of chunks of the vector; for collectives with blocks, one for each rank.
    """

    ranks: int
    chunks: int

    def part(
        self, collective: str, members: Block, blocks: Sequence[Block], root: int = 0, algorithm: str = ""
    ) -> Schedule:
        """One collective among some ranks, on some chunks.

        blocks: if the collective has blocks, one for each member, which may be empty; otherwise one, which is cut.
        root: an index into `members`. algorithm: by default, one with which every rank reaches every other in one step.
        """
        name = algorithm or ("linear" if collective in ROOTED else "direct")
        cuts = 1 if collective in BLOCKED else len(blocks[0])
        table = _table(collective, name, len(members), root, cuts)
        cells = blocks if collective in BLOCKED else np.reshape(blocks[0], (table.chunks, -1))
        return on(table, self.ranks, members, chunks=self.chunks, cells=cells)

    def down(self, host: Block, slices: Sequence[Block], leader: int = 0) -> Schedule:
        """All ranks of a host get all slices: one from the leader, several from the ranks of the rails."""
        if len(slices) == 1:
            return self.part("broadcast", host, slices, leader)
        return self.part("all_gather", host, _by_rail(host, slices))


Phases = list[list[Schedule]]
"""One after the other, each of parts that run at the same time."""


def _slices(rails: int, width: int) -> list[Block]:
    return [range(rail * width, (rail + 1) * width) for rail in range(rails)]


def _by_rail(host: Block, slices: Sequence[Block]) -> list[Block]:
    """For each rank of a host its block: the slice of its rail; ranks beyond the last rail have nothing."""
    return [*slices, *[()] * (len(host) - len(slices))]


def _table(collective: str, name: str, ranks: int, root: int, cuts: int) -> Schedule:
    """The table of an algorithm. cuts: into how many chunks its vector is cut, if the algorithm leaves this open."""
    if collective == "broadcast" and name in _SEGMENTED:
        segmented: Schedule = getattr(broadcasts, name)(ranks, root, cuts)
        return segmented
    return CATALOGUE[f"{collective}.{name}"].schedule(ranks, root)


def all_gather(hosts: Hosts, rails: int, core: str) -> Phases:
    """Ranks beyond the last rail give their blocks to a rail; each rail gathers between hosts; each host shares inside.

    Rank s of a host gives its block to the rail s modulo the number of rails.
    """
    whole = _Whole(hosts.ranks, hosts.ranks)
    on_rail = [[host[rail::rails] for host in hosts.members] for rail in range(rails)]
    slices = [[rank for ranks in mine for rank in ranks] for mine in on_rail]
    before = [
        whole.part("gather", host, [[rank] if seat % rails == rail else [] for seat, rank in enumerate(host)], rail)
        for host in hosts.members
        for rail in range(rails)
        if len(host) > rail + rails
    ]
    across = [whole.part("all_gather", [ranks[0] for ranks in mine], mine, 0, core) for mine in on_rail]
    return [before, across, [whole.down(host, slices) for host in hosts.members]]


def scatter(hosts: Hosts, root: int, core: str) -> Phases:
    """The root sends the leader of each other host the blocks of the host in one message; the leader hands them out."""
    whole, home = _Whole(hosts.ranks, hosts.ranks), hosts.host_of(root)
    leaders = [root if host == home else ranks[0] for host, ranks in enumerate(hosts.members)]
    across = whole.part("scatter", leaders, hosts.members, home, core)
    after = [
        whole.part("scatter", host, [[rank] for rank in host], host.index(leader))
        for host, leader in zip(hosts.members, leaders, strict=True)
    ]
    return [[across], after]


def all_reduce(hosts: Hosts, rails: int, core: str) -> Phases:
    """Each host adds up a slice for each rail; each rail adds up between hosts; each host gathers the slices."""
    width = CATALOGUE[f"all_reduce.{core}"].schedule(len(hosts.members)).chunks
    whole, slices = _Whole(hosts.ranks, rails * width), _slices(rails, width)
    after = [whole.down(host, slices) for host in hosts.members]
    across = [whole.part("all_reduce", [host[k] for host in hosts.members], [slices[k]], 0, core) for k in range(rails)]
    return [[*map(transpose, after)], across, after]


def broadcast(hosts: Hosts, root: int, rails: int, core: str, width: int) -> Phases:
    """The root gives each rail of its host a slice; the slice goes along the rail; each host puts the slices together.

    With one rail the root itself is the leader of its host. width: the chunks of a rail's slice.
    """
    whole, slices = _Whole(hosts.ranks, rails * width), _slices(rails, width)
    home = hosts.host_of(root)
    seats = [hosts.seat(root) if rails == 1 and host == home else 0 for host in range(len(hosts.members))]
    along = [[host[seat + rail] for host, seat in zip(hosts.members, seats, strict=True)] for rail in range(rails)]
    before = whole.part("scatter", hosts.members[home], _by_rail(hosts.members[home], slices), hosts.seat(root))
    across = [whole.part("broadcast", ranks, [mine], home, core) for ranks, mine in zip(along, slices, strict=True)]
    after = [whole.down(host, slices, seat) for host, seat in zip(hosts.members, seats, strict=True)]
    return [[before] if rails > 1 else [], across, after]


def barrier(hosts: Hosts, core: str) -> Phases:
    """The ranks of each host meet, then the leaders of the hosts, then each host again."""
    whole = _Whole(hosts.ranks, 1)
    inside = [whole.part("barrier", host, [[0]]) for host in hosts.members]
    across = whole.part("barrier", [host[0] for host in hosts.members], [[0]], 0, core)
    return [inside, [across], inside if hosts.spans else []]


@lru_cache(maxsize=64)
def spanning(
    collective: str,
    hosts: Hosts,
    root: int = 0,
    *,
    rails: int | None = None,
    core: str | None = None,
    segments: int | None = None,
) -> Schedule:
    """The table of a collective over hosts.

    rails: how many ranks of each host take part between hosts, each with a slice; by default as many as each host has.
    scatter, gather and barrier have no rails.
    core: the algorithm between hosts, one of `CORES`.
    segments: into how many the slice of a rail is cut, for the circulant and chain forms of broadcast and reduce.

    Raises ArgumentError for what does not exist.
    """
    _check(collective, hosts, root, rails, core)
    if segments is not None and segments < 1:
        raise ArgumentError(f"{collective}: got {segments} segments, expected at least 1")
    rails, core = rails or hosts.rails, core or CORES[collective][0]
    name = spanning_name(collective, hosts, rails, core, segments)
    phases = _made(collective, hosts, root, rails, core, segments)
    (chunks,) = {part.chunks for parts in phases for part in parts}
    none = Schedule(hosts.ranks, chunks, np.zeros((0, 9), np.int64), collective, root=root, hosts=hosts)
    return seq(*(par(none, *parts) for parts in phases)).replace(name=name)


def spanning_name(collective: str, hosts: Hosts, rails: int | None, core: str, segments: int | None) -> str:
    """The full name of a table over hosts: `all_reduce.spanning ring ×8`. Different parts have different names."""
    many = f" ×{rails or hosts.rails}" if collective in RAILED else ""
    segmented = collective in ("broadcast", "reduce") and core in _SEGMENTED
    cut = f" in {plural(segments or SEGMENTS, 'segment')}" if segmented else ""
    return f"{collective}.spanning {core}{many}{cut}"


def expected_rows(collective: str, hosts: Hosts, rails: int | None, core: str) -> float:
    """About how many rows a table has. In an all_gather each rank gets the block of each other rank by a row."""
    if "gather" in collective or "scatter" in collective:
        return hosts.ranks**2
    between, _ = CATALOGUE[f"{collective}.{core}"].expected(len(hosts.members))
    return (rails or 1) * between + 2 * sum(len(host) ** 2 for host in hosts.members)


def _made(collective: str, hosts: Hosts, root: int, rails: int, core: str, segments: int | None) -> Phases:
    match collective:
        case "all_reduce":
            return all_reduce(hosts, rails, core)
        case "broadcast":
            cut = (segments or SEGMENTS) if core in _SEGMENTED else 1
            return broadcast(hosts, root, rails, core, cut)
        case "all_gather":
            return all_gather(hosts, rails, core)
        case "scatter":
            return scatter(hosts, root, core)
        case "barrier":
            return barrier(hosts, core)
    phases = _made(DUALS[collective], hosts, root, rails, core, segments)
    return [[*map(transpose, parts)] for parts in reversed(phases)]


def _check(collective: str, hosts: Hosts, root: int, rails: int | None, core: str | None) -> None:
    if collective not in CORES:
        raise ArgumentError(f"{collective!r} has no table over hosts. Use one of {', '.join(CORES)}.")
    if core is not None and core not in CORES[collective]:
        known = ", ".join(CORES[collective])
        raise ArgumentError(f"{collective}: {core!r} does not run between hosts. Use one of {known}.")
    if rails is not None and not 1 <= rails <= hosts.rails:
        raise ArgumentError(
            f"{collective}: got {rails} rails, expected 1 to {hosts.rails}, the ranks of the smallest host"
        )
    if collective in ROOTED and not 0 <= root < hosts.ranks:
        raise ArgumentError(f"{collective}: got root {root}, expected 0 to {hosts.ranks - 1}")
