"""`spanning`: the parts of a collective over hosts. Collectives without a function here are the transposed of others.

With one rail, one rank of each host, its leader, sends and receives for all ranks of the host. With several rails, each
is responsible for a slice of the vector. All rails send at once, and no byte leaves a host twice.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from ....base.errors import ArgumentError
from ....base.units import plural
from ...contract import BLOCKED, DUALS, ROOTED
from ...hosts import Hosts
from ...moves import check_rows
from ...table import Schedule, X, Y, spread
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
    across = tuple(
        Part("all_gather", tuple(ranks[0] for ranks in mine), tuple(mine), 0, core) for mine in on_rail if len(mine) > 1
    )
    slices = [tuple(rank for ranks in mine for rank in ranks) for mine in on_rail]
    after = tuple(
        Part("broadcast", host, (slices[0],), 0)
        if rails == 1
        else Part("all_gather", host, (*slices, *[()] * (len(host) - rails)))
        for host in hosts.members
        if len(host) > 1
    )
    return HierarchicalTable("all_gather", hosts, 0, hosts.ranks, X, before, across, after)


def scatter(hosts: Hosts, root: int, core: str) -> HierarchicalTable:
    """The root sends the leader of each other host the blocks of the host in one message; the leader hands them out."""
    home = hosts.host_of(root)
    leaders = tuple(root if host == home else ranks[0] for host, ranks in enumerate(hosts.members))
    across = (Part("scatter", leaders, hosts.members, home, core), Part("barrier", leaders, ((),), 0, "dissemination"))
    after = tuple(
        Part("scatter", host, tuple((rank,) for rank in host), host.index(leader))
        for host, leader in zip(hosts.members, leaders, strict=True)
        if len(host) > 1
    )
    return HierarchicalTable("scatter", hosts, root, hosts.ranks, X, (), across if hosts.spans else (), after)


def all_reduce(hosts: Hosts, rails: int, core: str, width: int) -> HierarchicalTable:
    """Each host adds up inside, a slice for each rail; each rail adds up between hosts; each host gathers the slices.

    width: the chunks of a rail's slice.
    """
    slices = _slices(rails, width)
    before = tuple(_down(host, slices, 0, "reduce", "reduce_scatter") for host in hosts.members if len(host) > 1)
    after = tuple(_down(host, slices, 0, "broadcast", "all_gather") for host in hosts.members if len(host) > 1)
    legs = [tuple(host[rail] for host in hosts.members) for rail in range(rails)]
    across = tuple(Part("all_reduce", leg, (mine,), 0, core) for leg, mine in zip(legs, slices, strict=True))
    return HierarchicalTable("all_reduce", hosts, 0, rails * width, X, before, _of_many(across), after)


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
    words = Part("barrier", legs[0], ((),), 0, "dissemination")
    after = tuple(
        _down(host, slices, seat, "broadcast", "all_gather")
        for host, seat in zip(hosts.members, seats, strict=True)
        if len(host) > 1
    )
    return HierarchicalTable("broadcast", hosts, root, rails * width, X, before, _of_many((*across, words)), after)


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


def _of_many(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part for part in parts if len(part.members) > 1)


def all_to_all(hosts: Hosts, core: str) -> HierarchicalTable:
    """Blocks for other hosts go straight to their receivers; blocks for the own host go inside."""
    everybody = tuple(range(hosts.ranks))
    across = Part("all_to_all", everybody, tuple((rank,) for rank in everybody), 0, core, apart=hosts)
    after = tuple(Part("all_to_all", host, tuple((rank,) for rank in host)) for host in hosts.members if len(host) > 1)
    return HierarchicalTable(
        "all_to_all", hosts, 0, hosts.ranks, Y, (), (across,) if hosts.spans or hosts.ranks == 1 else (), after
    )


def barrier(hosts: Hosts, core: str) -> HierarchicalTable:
    """The ranks of each host meet, then the leaders of the hosts, then each host again."""
    inside = tuple(Part("barrier", host, ((0,),)) for host in hosts.members if len(host) > 1)
    across = (Part("barrier", tuple(host[0] for host in hosts.members), ((0,),), 0, core),) if hosts.spans else ()
    return HierarchicalTable("barrier", hosts, 0, 1, X, inside, across, inside if hosts.spans else ())


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
        case "all_to_all":
            return all_to_all(hosts, core)
        case "barrier":
            return barrier(hosts, core)
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
    if schedule.scratch:
        said = f"{schedule.name} has {schedule.scratch} scratch chunks, more than the {schedule.chunks} of its vector"
        raise ArgumentError(f"{said}: it runs on one host only")
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
