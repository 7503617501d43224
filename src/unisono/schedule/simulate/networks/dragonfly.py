"""The dragonfly: groups of routers, each group with a cable to every other."""

from __future__ import annotations

import numpy as np

from ....base.errors import ArgumentError
from ...hosts import Hosts
from .network import Bundle, Hardware, Ints, Network, mix
from .switched import host_ports, place_of


def dragonfly(hosts: Hosts, hardware: Hardware, *, p: int = 0, a: int = 0, h: int = 0) -> Network:
    """Groups of a routers, all with cables to each other; a router has p hosts and h cables to other groups.

    By default a = 2 p = 2 h, the least that has room. Routes are minimal: to the router with the cable, across, to the
    receiver's router. Where two groups have several cables, a hash of sender and receiver says which.

    source: Kim, Dally, Scott and Abts 2008
    """
    place, n = place_of(hosts), len(hosts.members)
    least = next(h for h in range(1, n + 1) if h * 2 * h * (2 * h * h + 1) >= n)
    h = h or least
    p, a = p or h, a or 2 * h
    each = p * a
    groups = -(-n // each)
    if min(p, a, h) < 1 or groups > a * h + 1:
        room = max(each * (a * h + 1), 0)
        raise ArgumentError(f"dragonfly:p={p},a={a},h={h} has room for {room} hosts, not for {n}")
    others = max(groups - 1, 1)
    first = np.cumsum([0, n, n, groups * a * a])

    def port(group: Ints, other: Ints, copy: Ints) -> Ints:
        return np.asarray(np.where(other < group, other, other - 1) + copy * others)

    def path(src: Ints, dst: Ints) -> Ints:
        x, y = place[src], place[dst]
        here, there = x // p, y // p
        group, other = here // a, there // a
        cables = a * h // others
        copy = mix(src, dst) % max(cables, 1)
        leaves, enters = port(group, other, copy), port(other, group, copy)
        away = group != other
        out, into = np.where(away, group * a + leaves // h, there), np.where(away, other * a + enters // h, there)
        hop = np.where(here != out, first[2] + here * a + out % a, -1)
        across = np.where(away, first[3] + group * a * h + leaves, -1)
        last = np.where(into != there, first[2] + into * a + there % a, -1)
        return np.stack([x, n + y, hop, across, last])

    def local(index: int) -> tuple[str, str]:
        router, other = divmod(index, a)
        return f"router{router}", f"router{router // a * a + other}"

    def cable(index: int) -> tuple[str, str]:
        group, leaves = divmod(index, a * h)
        copy, at = divmod(leaves, others)
        other = at + (at >= group)
        enters = int(port(np.array(other), np.array(group), np.array(copy)))
        return f"router{group * a + leaves // h}", f"router{other * a + enters // h}"

    rate = hardware.between.bytes_per_s
    fabric = (
        *host_ports(n, hardware, "router", p),
        Bundle(groups * a * a, rate, local),
        Bundle(groups * a * h, rate, cable),
    )
    return Network(f"dragonfly:p={p},a={a},h={h}", hardware, place, fabric, path)
