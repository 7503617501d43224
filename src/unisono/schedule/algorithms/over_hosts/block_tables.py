"""Tables over hosts for blocks, one per rank: all_gather, scatter, and, transposed, reduce_scatter and gather."""

from __future__ import annotations

from ...hosts import Hosts
from ...table import X
from .part import Part
from .whole import HierarchicalTable

Block = tuple[int, ...]


def all_gather(hosts: Hosts, rails: int, core: str) -> HierarchicalTable:
    """Ranks beyond the last rail give their blocks to one of a rail; each rail gathers those of all hosts; then inside.

    Rank s of a host gives its block to the rail s modulo their number.
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
    """The root sends each other host all of its blocks in one message, to its leader, who hands them out."""
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
