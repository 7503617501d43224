"""Networks in which a message passes one switch: flat, two levels, rails."""

from __future__ import annotations

import numpy as np

from ...hosts import Hosts
from .network import Bundle, Hardware, Ints, Network, mix


def place_of(hosts: Hosts) -> Ints:
    """For each rank the number of its host."""
    return np.array([hosts.host_of(rank) for rank in range(hosts.ranks)], np.int64)


def host_ports(hosts: int, hardware: Hardware, switch: str = "switch", each: int = 1) -> tuple[Bundle, Bundle]:
    """The links of hosts to their switch, and back. each: so many hosts have one switch; 0: all have the same."""

    def up(host: int) -> tuple[str, str]:
        return f"host{host}", switch if not each else f"{switch}{host // each}"

    rate = hardware.between.bytes_per_s
    return Bundle(hosts, rate, up), Bundle(hosts, rate, lambda host: (up(host)[1], up(host)[0]))


def flat(hosts: Hosts, hardware: Hardware) -> Network:
    """Every rank has a port of its own at one switch that never blocks, and none is near: the model of most papers.

    source: the single-port, fully connected model, as in Chan, Heimlich, Purkayastha and van de Geijn 2007
    """
    p = hosts.ranks
    ports = host_ports(p, hardware, each=0)
    return Network("flat", hardware, np.arange(p), ports, lambda src, dst: np.stack([src, p + dst]))


def two_levels(hosts: Hosts, hardware: Hardware) -> Network:
    """Every host has one port at one switch that never blocks; its ranks share it.

    source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan 2000, with two of their levels
    """
    place, n = place_of(hosts), len(hosts.members)
    ports = host_ports(n, hardware, each=0)
    path = lambda src, dst: np.stack([place[src], n + place[dst]])  # noqa: E731
    return Network("two-levels", hardware, place, ports, path)


def rails(hosts: Hosts, hardware: Hardware, *, oversubscription: float = 1.0, spines: int = 4) -> Network:
    """Every rank has a port at the switch of its seat (its rail); between rails a message passes one of the spines.

    oversubscription: how much more the hosts can send into a rail's switch than the switch can send to the spines.
    source: Wang and others 2023, "Optimized network architectures for large language model training"
    """
    place = place_of(hosts)
    seat = np.array([hosts.seat(rank) for rank in range(hosts.ranks)], np.int64)
    p, n, each, rate = hosts.ranks, len(hosts.members), max(map(len, hosts.members)), hardware.between.bytes_per_s
    wide = max(1.0, n / spines) * rate / oversubscription

    def path(src: Ints, dst: Ints) -> Ints:
        spine, changes = mix(src, dst) % spines, seat[src] != seat[dst]
        up = np.where(changes, 2 * p + seat[src] * spines + spine, -1)
        down = np.where(changes, 2 * p + each * spines + seat[dst] * spines + spine, -1)
        return np.stack([src, p + dst, up, down])

    def port(rank: int) -> tuple[str, str]:
        return f"host{place[rank]}", f"rail{seat[rank]}"

    def trunk(index: int) -> tuple[str, str]:
        return f"rail{index // spines}", f"spine{index % spines}"

    fabric = (
        Bundle(p, rate, port),
        Bundle(p, rate, lambda rank: port(rank)[::-1]),
        Bundle(each * spines, wide, trunk),
        Bundle(each * spines, wide, lambda index: trunk(index)[::-1]),
    )
    return Network("rails", hardware, place, fabric, path)
