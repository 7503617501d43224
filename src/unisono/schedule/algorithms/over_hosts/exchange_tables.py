"""Tables over hosts in which every rank has something for every other: all_to_all and barrier."""

from __future__ import annotations

from ...hosts import Hosts
from ...table import X, Y
from .part import Part
from .whole import HierarchicalTable


def all_to_all(hosts: Hosts, core: str) -> HierarchicalTable:
    """Blocks for other hosts go straight to their receivers; those for the own host go inside."""
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
