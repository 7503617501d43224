"""`spanning`: the parts of a collective over hosts. Collectives without a function here are the transposed of others.

With one rail, one rank of each host, its leader, sends and receives for all ranks of the host. With several rails, each
is responsible for a slice of the vector. All rails send at once, and no byte leaves a host twice.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from ....base.errors import ArgumentError
from ....base.units import plural
from ...contract import DUALS, ROOTED
from ...hosts import Hosts
from ..catalogue import CATALOGUE, SEGMENTS
from .whole import SEGMENTED, Block, HierarchicalTable, Part, transposed


def all_gather(hosts: Hosts, rails: int, core: str) -> HierarchicalTable:
    """Ranks beyond the last rail give their blocks to a rail; each rail gathers between hosts; each host shares inside.

    Rank s of a host gives its block to the rail s modulo the number of rails.
    """
    on_rail = [[host[rail::rails] for host in hosts.members] for rail in range(rails)]
    before = tuple(
        Part("gather", host, tuple((rank,) if seat % rails == rail else () for seat, rank in enumerate(host)), rail)
        for host in hosts.members
        for rail in range(rails)
        if len(host) > rail + rails
    )
    across = tuple(Part("all_gather", tuple(ranks[0] for ranks in mine), tuple(mine), 0, core) for mine in on_rail)
    slices = [tuple(rank for ranks in mine for rank in ranks) for mine in on_rail]
    after = tuple(_down(host, slices, 0, "broadcast", "all_gather") for host in hosts.members)
    return HierarchicalTable("all_gather", hosts, 0, hosts.ranks, before, across, after)


def scatter(hosts: Hosts, root: int, core: str) -> HierarchicalTable:
    """The root sends the leader of each other host the blocks of the host in one message; the leader hands them out."""
    home = hosts.host_of(root)
    leaders = tuple(root if host == home else ranks[0] for host, ranks in enumerate(hosts.members))
    across = (Part("scatter", leaders, hosts.members, home, core),)
    after = tuple(
        Part("scatter", host, tuple((rank,) for rank in host), host.index(leader))
        for host, leader in zip(hosts.members, leaders, strict=True)
    )
    return HierarchicalTable("scatter", hosts, root, hosts.ranks, (), across, after)


def all_reduce(hosts: Hosts, rails: int, core: str, width: int) -> HierarchicalTable:
    """Each host adds up inside, a slice for each rail; each rail adds up between hosts; each host gathers the slices.

    width: the chunks of a rail's slice.
    """
    slices = _slices(rails, width)
    before = tuple(_down(host, slices, 0, "reduce", "reduce_scatter") for host in hosts.members)
    after = tuple(_down(host, slices, 0, "broadcast", "all_gather") for host in hosts.members)
    legs = [tuple(host[rail] for host in hosts.members) for rail in range(rails)]
    across = tuple(Part("all_reduce", leg, (mine,), 0, core) for leg, mine in zip(legs, slices, strict=True))
    return HierarchicalTable("all_reduce", hosts, 0, rails * width, before, across, after)


def broadcast(hosts: Hosts, root: int, rails: int, core: str, width: int) -> HierarchicalTable:
    """The root gives each rail of its host a slice; the slice goes along the rail; each host puts the slices together.

    With one rail the root itself is the leader of its host.
    """
    home, slices = hosts.host_of(root), _slices(rails, width)
    seats = [hosts.seat(root) if rails == 1 and host == home else 0 for host in range(len(hosts.members))]
    legs = [tuple(host[seat + rail] for host, seat in zip(hosts.members, seats, strict=True)) for rail in range(rails)]
    before: tuple[Part, ...] = ()
    if rails > 1:
        before = (Part("scatter", hosts.members[home], _blocks(hosts.members[home], slices), hosts.seat(root)),)
    across = tuple(Part("broadcast", leg, (mine,), home, core) for leg, mine in zip(legs, slices, strict=True))
    after = tuple(
        _down(host, slices, seat, "broadcast", "all_gather") for host, seat in zip(hosts.members, seats, strict=True)
    )
    return HierarchicalTable("broadcast", hosts, root, rails * width, before, across, after)


def _slices(rails: int, width: int) -> list[Block]:
    return [tuple(range(rail * width, (rail + 1) * width)) for rail in range(rails)]


def _blocks(host: tuple[int, ...], slices: list[Block]) -> tuple[Block, ...]:
    """For each rank of a host its block: the slice of its rail; ranks beyond the last rail have nothing."""
    return (*slices, *[()] * (len(host) - len(slices)))


def _down(host: tuple[int, ...], slices: list[Block], leader: int, one: str, many: str) -> Part:
    """The part inside a host: collective `one` from or to its leader with one rail, `many` with several rails."""
    if len(slices) == 1:
        return Part(one, host, (slices[0],), leader)
    return Part(many, host, _blocks(host, slices))


def barrier(hosts: Hosts, core: str) -> HierarchicalTable:
    """The ranks of each host meet, then the leaders of the hosts, then each host again."""
    inside = tuple(Part("barrier", host, ((0,),)) for host in hosts.members)
    across = (Part("barrier", tuple(host[0] for host in hosts.members), ((0,),), 0, core),)
    return HierarchicalTable("barrier", hosts, 0, 1, inside, across, inside if hosts.spans else ())


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
"""Collective -> the algorithms that may run between hosts. The first is for many bytes, and the default.

An all_to_all is not here: each block goes straight to its rank, so one table of all ranks does as well.
"""

RAILED = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Collectives that have rails."""


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
    scatter, gather and barrier have no rails.
    core: the algorithm between hosts, one of `CORES`.
    segments: into how many the slice of a rail is cut, for the circulant and chain forms of broadcast and reduce.

    Raises ArgumentError for what does not exist.
    """
    _check(collective, hosts, root, rails, core)
    if segments is not None and segments < 1:
        raise ArgumentError(f"{collective}: {segments} segments: give at least 1")
    rails, core = rails or hosts.rails, core or CORES[collective][0]
    name = spanning_name(collective, hosts, rails, core, segments)
    made = _made(collective, hosts, root, rails, core, segments)
    before, across, after = (tuple(part for part in parts if len(part.members) > 1) for parts in made.phases)
    return replace(made, before=before, across=across, after=after, name=name)


def spanning_name(collective: str, hosts: Hosts, rails: int | None, core: str, segments: int | None) -> str:
    """The full name of a table over hosts: `all_reduce.spanning ring ×8`. Different parts have different names."""
    many = f" ×{rails or hosts.rails}" if collective in RAILED else ""
    segmented = collective in ("broadcast", "reduce") and core in SEGMENTED
    cut = f" in {plural(segments or SEGMENTS, 'segment')}" if segmented else ""
    return f"{collective}.spanning {core}{many}{cut}"


def _made(collective: str, hosts: Hosts, root: int, rails: int, core: str, segments: int | None) -> HierarchicalTable:
    match collective:
        case "all_reduce":
            return all_reduce(hosts, rails, core, CATALOGUE[f"all_reduce.{core}"].schedule(len(hosts.members)).chunks)
        case "broadcast":
            cut = (segments or SEGMENTS) if core in SEGMENTED else 1
            return broadcast(hosts, root, rails, core, cut)
        case "all_gather":
            return all_gather(hosts, rails, core)
        case "scatter":
            return scatter(hosts, root, core)
        case "barrier":
            return barrier(hosts, core)
    return transposed(_made(DUALS[collective], hosts, root, rails, core, segments))


def _check(collective: str, hosts: Hosts, root: int, rails: int | None, core: str | None) -> None:
    if collective not in CORES:
        raise ArgumentError(f"{collective!r} has no table over hosts; there are: {', '.join(CORES)}")
    if core is not None and core not in CORES[collective]:
        known = ", ".join(CORES[collective])
        raise ArgumentError(f"{collective}: {core!r} does not run between hosts; these do: {known}")
    if rails is not None and not 1 <= rails <= hosts.rails:
        raise ArgumentError(f"{collective}: {rails} rails are not between 1 and {hosts.rails}, what each host has")
    if collective in ROOTED and not 0 <= root < hosts.ranks:
        raise ArgumentError(f"{collective}: root {root} is not one of the ranks 0 to {hosts.ranks - 1}")
