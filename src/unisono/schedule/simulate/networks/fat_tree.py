"""The fat tree of three levels of switches with k ports each."""

from __future__ import annotations

import numpy as np

from ....base.errors import ArgumentError
from ...hosts import Hosts
from .network import Bundle, Hardware, Ints, Network, mix
from .switched import host_ports, place_of


def fat_tree(
    hosts: Hosts, hardware: Hardware, *, k: int = 0, oversubscription: float = 1.0, routing: str = "ecmp"
) -> Network:
    """k pods of k / 2 edge and k / 2 aggregation switches, k / 2 hosts at each edge switch, (k / 2)^2 core switches.

    k: even; by default the least that has room. oversubscription: how much more the hosts of an edge switch can send
    than its links upwards carry; those to the core are as slow. routing: `ecmp` takes a way upwards by a hash of sender
    and receiver, `dmodk` by the number of the receiver's host, with which shifts never collide (Zahavi 2010).

    source: Al-Fares, Loukissas and Vahdat 2008, after Leiserson 1985
    """
    place, n = place_of(hosts), len(hosts.members)
    k = k or next(k for k in range(2, n + 4, 2) if k**3 // 4 >= n)
    if k < 2 or k % 2 or k**3 // 4 < n:
        raise ArgumentError(f"fat-tree: k={k} has room for {max(k, 0) ** 3 // 4} hosts, not for {n}; k must be even")
    if routing not in ("ecmp", "dmodk"):
        raise ArgumentError(f"fat-tree: routing={routing} is neither ecmp nor dmodk")
    half = k // 2
    edges = -(-n // half)
    pods = -(-edges // half)
    slow = hardware.between.bytes_per_s / oversubscription
    first = np.cumsum([0, n, n, edges * half, edges * half, pods * half * half])

    def path(src: Ints, dst: Ints) -> Ints:
        a, b = place[src], place[dst]
        edge_a, edge_b = a // half, b // half
        pod_a, pod_b = edge_a // half, edge_b // half
        way = mix(src, dst) if routing == "ecmp" else b
        agg, core = way % half, way // half % half
        up = np.where(edge_a != edge_b, first[2] + edge_a * half + agg, -1)
        down = np.where(edge_a != edge_b, first[3] + edge_b * half + agg, -1)
        far_up = np.where(pod_a != pod_b, first[4] + (pod_a * half + agg) * half + core, -1)
        far_down = np.where(pod_a != pod_b, first[5] + (pod_b * half + agg) * half + core, -1)
        return np.stack([a, n + b, up, far_up, far_down, down])

    def aggregation(index: int) -> tuple[str, str]:
        edge, agg = divmod(index, half)
        return f"edge{edge}", f"agg{edge // half * half + agg}"

    def core_of(index: int) -> tuple[str, str]:
        switch, core = divmod(index, half)
        return f"agg{switch}", f"core{switch % half * half + core}"

    fabric = (
        *host_ports(n, hardware, "edge", half),
        Bundle(edges * half, slow, aggregation),
        Bundle(edges * half, slow, lambda index: aggregation(index)[::-1]),
        Bundle(pods * half * half, slow, core_of),
        Bundle(pods * half * half, slow, lambda index: core_of(index)[::-1]),
    )
    name = f"fat-tree:k={k}" + (f",oversubscription={oversubscription:g}" if oversubscription != 1 else "")
    return Network(name + (",routing=dmodk" if routing == "dmodk" else ""), hardware, place, fabric, path)
