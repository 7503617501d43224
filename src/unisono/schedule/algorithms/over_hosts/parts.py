"""The parts of collectives over hosts. The other collectives are the transposed of these.

With one rail, one rank of each host, its leader, sends and receives for all ranks of the host. With several rails, each
is responsible for a slice of the vector. All rails send at once, and no byte leaves a host twice.
"""

from __future__ import annotations

from ...hosts import Hosts
from ...table import X, Y
from .whole import HierarchicalTable, Part

Block = tuple[int, ...]


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
    across = (
        Part("scatter", leaders, hosts.members, home, core),
        Part("barrier", leaders, ((),), 0, "dissemination"),
    )
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
