"""Networks as data: links with their rates, and which of them a message takes; and networks by name, as a user writes
them: `flat`, `fat-tree:k=8,oversubscription=2`, `torus:4x4x2`.

All links carry one direction. A rank has two links of its own, at the rate at which it copies. Between hosts a message
takes the sender's link, the fabric, and the receiver's link. Within a host the receiver fetches the message, which
takes the receiver's link only.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import ArgumentError
from ...base.link import Link
from ..hosts import Hosts

Ints = npt.NDArray[np.int64]
Links = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float64]
Path = Callable[[Ints, Ints], Ints]
"""(senders, receivers) -> for each pair a column of numbers of links of the fabric, in any order; -1 is none."""

NO_LINK = 0
"""The number that stands for no link, in routes that have fewer links than others."""

_SLOW = re.compile(r"(?P<a>\w+)-(?P<b>\w+):x(?P<factor>\d*\.?\d+)")


class Bundle(NamedTuple):
    """Links of one kind. size: how many. ends: gives the names of a link's two ends for its number in the bundle."""

    size: int
    bytes_per_s: float
    ends: Callable[[int], tuple[str, str]]


@dataclass(frozen=True)
class Hardware:
    """The rates and latencies of hosts and their links.

    between: a message between neighbouring hosts, and a link of the fabric.
    inside: a message between ranks of a host.
    hop_s: the latency that each switch or host on the way adds.
    message_share: how much of the latency between hosts a rank is busy with one message; with Gloo it is 35 to 50 of
    100 microseconds.
    eager_bytes: longer messages wait for their receiver, as in the model LogGPS (Ino, Fujimoto and Hagihara 2001).
    combine_bytes_per_s: the rate at which a rank combines what it has received.
    """

    between: Link = field(default_factory=Link)
    inside: Link = Link(1e-6, 5e9)  # noqa: RUF009  frozen
    hop_s: float = 200e-9
    message_share: float = 0.4
    eager_bytes: int = 64 << 10
    combine_bytes_per_s: float = 10e9

    @property
    def message_s(self) -> float:
        """Seconds between two messages that a rank sends in one round."""
        return self.message_share * self.between.latency_s


@dataclass(frozen=True)
class Network:
    """Ranks and the links between them.

    places: for each rank the number of its host in this network.
    fabric: the links between hosts, in the order of their numbers.
    path: which links of the fabric a message between two hosts takes.
    slowed: number of a link -> the factor of its rate.
    """

    name: str
    hardware: Hardware
    places: Ints
    fabric: tuple[Bundle, ...]
    path: Path = field(repr=False)
    slowed: tuple[tuple[int, float], ...] = ()

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.places)

    @property
    def one_host(self) -> bool:
        """Do all ranks share a host?"""
        return bool((self.places == self.places[0]).all())

    @cached_property
    def rates(self) -> Numbers:
        """Bytes per second by the number of a link: no link, ranks outwards, ranks inwards, the fabric."""
        own = np.full(2 * self.ranks, self.hardware.inside.bytes_per_s)
        rates = np.concatenate([[np.inf], own, *(np.full(some.size, some.bytes_per_s) for some in self.fabric)])
        for number, factor in self.slowed:
            rates[number] *= factor
        return rates

    def far(self, src: Ints, dst: Ints) -> npt.NDArray[np.bool_]:
        """Which messages go from host to host."""
        return np.asarray(self.places[src] != self.places[dst])

    def route(self, src: Ints, dst: Ints) -> Links:
        """A column of links for each message; `NO_LINK` fills it."""
        far = np.flatnonzero(self.far(src, dst))
        across = self.path(src[far], dst[far])
        links = np.zeros((2 + len(across), len(src)), np.int32)
        links[0] = 1 + self.ranks + dst
        links[1, far] = 1 + src[far]
        for row, some in zip(links[2:], across, strict=True):
            row[far] = np.where(some < 0, NO_LINK, some + (1 + 2 * self.ranks))
        return links

    def latency(self, src: Ints, dst: Ints, route: Links) -> Numbers:
        """Seconds from the time when the last byte of a message leaves until it arrives."""
        hardware, count = self.hardware, np.zeros(len(src), np.int32)
        for row in route[2:]:
            count += row != NO_LINK
        away = hardware.between.latency_s + hardware.hop_s * np.maximum(count - 2, 0)
        return np.where(self.far(src, dst), away, np.where(src == dst, 0.0, hardware.inside.latency_s))

    def link_name(self, number: int) -> str:
        """The name of a link, such as `host3-edge0`; the links of a rank are `rank3 out` and `rank3 in`."""
        if number <= 2 * self.ranks:
            rank = (number - 1) % self.ranks
            return f"rank{rank} {'out' if number <= self.ranks else 'in'}"
        return next("-".join(ends) for at, ends in self._cables() if at == number)

    def slow(self, text: str) -> "Network":
        """The network with a cable, both ways, at a part of its rate: `host3-edge0:x0.1`. `3` is `host3`.

        Raises ArgumentError for a cable that does not exist.
        """
        found = _SLOW.fullmatch(text.strip())
        factor = float(found["factor"]) if found else 0.0
        if found is None or not factor:
            raise ArgumentError(f"slow link: expected such as host3-switch:x0.1, not {text!r}")
        pair = {f"host{end}" if end.isdigit() else end for end in (found["a"], found["b"])}
        hit = [number for number, ends in self._cables() if set(ends) == pair]
        if not hit:
            cables = [ends for _, ends in self._cables()]
            near = ["-".join(ends) for ends in cables if ends[0] in pair] or ["-".join(ends) for ends in cables]
            known = ", ".join(sorted(near)[:6])
            raise ArgumentError(f"{self.name} has no cable {found['a']}-{found['b']}; it has {known}, ...")
        return replace(self, slowed=(*self.slowed, *((number, factor) for number in hit)))

    def _cables(self) -> Iterator[tuple[int, tuple[str, str]]]:
        number = 1 + 2 * self.ranks
        for some in self.fabric:
            for index in range(some.size):
                yield number + index, some.ends(index)
            number += some.size


def mix(src: Ints, dst: Ints) -> Ints:
    """A hash of two numbers, to spread messages over ways of equal cost: splitmix64 (Steele and others 2014).

    Switches with ECMP do this with the addresses and ports of a connection. A connection always takes the same way,
    whatever the load of the other ways is.
    """
    x = (src.astype(np.uint64) << np.uint64(32)) ^ dst.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((x ^ (x >> np.uint64(31))) >> np.uint64(2), np.int64)


def cables(size: int, bytes_per_s: float, ends: Callable[[int], tuple[str, str]]) -> tuple[Bundle, Bundle]:
    """Links, and the links back."""
    return Bundle(size, bytes_per_s, ends), Bundle(size, bytes_per_s, lambda index: ends(index)[::-1])


def flat(hosts: Hosts, hardware: Hardware) -> Network:
    """Every rank has its own port at one switch that never blocks, also within a host: the model of most papers.

    source: the single-port, fully connected model, as in Chan, Heimlich, Purkayastha and van de Geijn 2007
    """
    return replace(two_levels(Hosts.of(range(hosts.ranks)), hardware), name="flat")


def two_levels(hosts: Hosts, hardware: Hardware) -> Network:
    """Every host has one port at one switch that never blocks; its ranks share it.

    source: Karonis, de Supinski, Foster, Gropp, Lusk and Bresnahan 2000, with two of their levels
    """
    place, n = np.array(hosts.places), len(hosts.members)
    ports = cables(n, hardware.between.bytes_per_s, lambda host: (f"host{host}", "switch"))
    path = lambda src, dst: np.stack([place[src], n + place[dst]])  # noqa: E731
    return Network("two-levels", hardware, place, ports, path)


def rails(hosts: Hosts, hardware: Hardware, *, oversubscription: float = 1.0, spines: int = 4) -> Network:
    """Every rank has a port at the switch of its seat (its rail); between rails a message passes one of the spines.

    oversubscription: how much more the hosts can send into a rail's switch than the switch can send to the spines.
    source: Wang and others 2023, "Optimized network architectures for large language model training"
    """
    place = np.array(hosts.places)
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

    fabric = *cables(p, rate, port), *cables(each * spines, wide, trunk)
    return Network("rails", hardware, place, fabric, path)


def fat_tree(hosts: Hosts, hardware: Hardware, *, k: int = 0, oversubscription: float = 1.0) -> Network:
    """k pods of k / 2 edge and k / 2 aggregation switches, k / 2 hosts at each edge switch, (k / 2)^2 core switches.

    k: even; by default the least with room for all hosts.
    oversubscription: how much more the hosts of an edge switch can send than its links upwards carry. The links to the
    core are as slow as these.

    A hash of sender and receiver chooses the way upwards.

    source: Al-Fares, Loukissas and Vahdat 2008, after Leiserson 1985
    """
    place, n = np.array(hosts.places), len(hosts.members)
    k = k or next(k for k in range(2, n + 4, 2) if k**3 // 4 >= n)
    if k < 2 or k % 2 or k**3 // 4 < n:
        raise ArgumentError(f"fat-tree: k={k} has room for {max(k, 0) ** 3 // 4} hosts, not for {n}; k must be even")
    half = k // 2
    edges = -(-n // half)
    pods = -(-edges // half)
    rate = hardware.between.bytes_per_s
    slow = rate / oversubscription
    first = np.cumsum([0, n, n, edges * half, edges * half, pods * half * half])

    def path(src: Ints, dst: Ints) -> Ints:
        a, b = place[src], place[dst]
        edge_a, edge_b = a // half, b // half
        pod_a, pod_b = edge_a // half, edge_b // half
        way = mix(src, dst)
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
        *cables(n, rate, lambda host: (f"host{host}", f"edge{host // half}")),
        *cables(edges * half, slow, aggregation),
        *cables(pods * half * half, slow, core_of),
    )
    name = f"fat-tree:k={k}" + (f",oversubscription={oversubscription:g}" if oversubscription != 1 else "")
    return Network(name, hardware, place, fabric, path)


def torus(hosts: Hosts, hardware: Hardware, *, sides: tuple[int, ...] = ()) -> Network:
    """Hosts in a grid whose rows are rings, with a cable to each neighbour; hosts pass messages on.

    sides: their product is the number of hosts; by default three that are about equal.

    A message goes the shorter way round, dimension by dimension. If both ways are equal, messages of even hosts go up.

    source: Dally and Seitz 1987 (dimension order); Adiga and others 2005 (Blue Gene/L)
    """
    place, n = np.array(hosts.places), len(hosts.members)
    sides = sides or sides_of(n)
    if prod(sides) != n or min(sides) < 1:
        raise ArgumentError(f"torus:{'x'.join(map(str, sides))} has {prod(sides)} hosts, not {n}")
    stride = np.cumprod((1, *sides))
    at = [np.arange(n) // stride[d] % side for d, side in enumerate(sides)]
    around = [np.tile(np.arange(side), 3) * stride[d] for d, side in enumerate(sides)]

    def path(src: Ints, dst: Ints) -> Ints:
        a, b = place[src], place[dst]
        rows = []
        for d, side in enumerate(sides):
            x, y = at[d][a], at[d][b]
            up = (y - x) % side
            upwards = (2 * up < side) | ((2 * up == side) & (a % 2 == 0))
            steps = np.where(upwards, up, side - up)
            way = np.where(upwards, 1, -1)
            # The host at 0 of this ring: the message is at its goal in earlier dimensions, not yet in later ones.
            first = a // (stride[d] * side) * (stride[d] * side) + b % stride[d] + (2 * d + ~upwards) * n
            for step in range(int(steps.max(initial=0))):
                rows.append(np.where(steps > step, first + around[d][x + side], -1))
                x += way
        return np.stack(rows) if rows else np.zeros((0, len(src)), np.int64)

    def ends(d: int, way: int, host: int) -> tuple[str, str]:
        here = host // int(stride[d]) % sides[d]
        return f"host{host}", f"host{host + ((here + way) % sides[d] - here) * int(stride[d])}"

    fabric = tuple(
        Bundle(n, hardware.between.bytes_per_s, lambda host, d=d, way=way: ends(d, way, host))  # type: ignore[misc]
        for d in range(len(sides))
        for way in (1, -1)
    )
    return Network(f"torus:{'x'.join(map(str, sides))}", hardware, place, fabric, path)


def sides_of(hosts: int, dimensions: int = 3) -> tuple[int, ...]:
    """The sides of a grid of this number of hosts, as equal as possible."""
    if dimensions == 1:
        return (hosts,)
    side = next(d for d in range(round(hosts ** (1 / dimensions)), 0, -1) if hosts % d == 0)
    return (*sides_of(hosts // side, dimensions - 1), side)


NETWORKS: Mapping[str, Callable[..., Network]] = {
    "flat": flat,
    "two-levels": two_levels,
    "rails": rails,
    "fat-tree": fat_tree,
    "torus": torus,
}
"""Name -> the function that makes the network from hosts, a hardware, and the options behind the name."""

_KINDS: Mapping[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    tuple[int, ...]: lambda text: tuple(map(int, text.split("x"))),
}


def network(text: str, hosts: Hosts, hardware: Hardware | None = None) -> Network:
    """The network of this name for these hosts. Raises ArgumentError.

    text: a name of `NETWORKS`, and options behind a colon: `fat-tree:k=8,oversubscription=2`, `torus:4x4x2`.
    """
    name, _, rest = text.strip().partition(":")
    if name not in NETWORKS:
        raise ArgumentError(f"{name!r} is no network; there are: {', '.join(NETWORKS)}")
    make = NETWORKS[name]
    takes = {key: p for key, p in inspect.signature(make).parameters.items() if p.kind is p.KEYWORD_ONLY}
    known = f"{name} takes {', '.join(takes) or 'nothing'}"
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = next(iter(takes), ""), key
        if key.strip() not in takes or key.strip() in given:
            raise ArgumentError(f"network {text!r}: {part!r} is not known here; {known}")
        try:
            given[key.strip()] = _KINDS[takes[key.strip()].annotation](value.strip())
        except ValueError:
            raise ArgumentError(f"network {text!r}: {value!r} is no value of {key}; {known}") from None
    if given.get("oversubscription", 1.0) <= 0:
        raise ArgumentError(f"network {text!r}: oversubscription must be above 0")
    return make(hosts, hardware or Hardware(), **given)
