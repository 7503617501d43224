"""Networks as data: links with their rates, and which of them a message takes; and networks by name, as a user writes
them: `flat`, `two-levels`, `racks:size=8,oversubscription=2`.

All links carry one direction. A rank has two links of its own, at the rate at which it copies. Between hosts a message
takes the sender's link, the fabric, and the receiver's link. Within a host the receiver fetches the message, which
takes the receiver's link only.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
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
    """

    name: str
    hardware: Hardware
    places: Ints
    fabric: tuple[Bundle, ...]
    path: Path = field(repr=False)

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
        return np.concatenate([[np.inf], own, *(np.full(some.size, some.bytes_per_s) for some in self.fabric)])

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
        """The name of a link, such as `host3-rack0`; the links of a rank are `rank3 out` and `rank3 in`."""
        if number <= 2 * self.ranks:
            rank = (number - 1) % self.ranks
            return f"rank{rank} {'out' if number <= self.ranks else 'in'}"
        return next("-".join(ends) for at, ends in self._cables() if at == number)

    def _cables(self) -> Iterator[tuple[int, tuple[str, str]]]:
        number = 1 + 2 * self.ranks
        for some in self.fabric:
            for index in range(some.size):
                yield number + index, some.ends(index)
            number += some.size


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


def racks(hosts: Hosts, hardware: Hardware, *, size: int = 8, oversubscription: float = 2.0) -> Network:
    """Hosts in racks: every host has a port at the switch of its rack, and each of these has a port at one core switch.

    size: the number of hosts in a rack.
    oversubscription: how much more the hosts of a rack can send than its port at the core carries.
    source: Al-Fares, Loukissas and Vahdat 2008, who describe such networks as what data centers have
    """
    if size < 1:
        raise ArgumentError(f"racks: size={size}: expected a number of hosts, from 1 up")
    place, n = np.array(hosts.places), len(hosts.members)
    many, rate = -(-n // size), hardware.between.bytes_per_s

    def path(src: Ints, dst: Ints) -> Ints:
        a, b = place[src], place[dst]
        rack_a, rack_b = a // size, b // size
        up = np.where(rack_a != rack_b, 2 * n + rack_a, -1)
        down = np.where(rack_a != rack_b, 2 * n + many + rack_b, -1)
        return np.stack([a, n + b, up, down])

    fabric = (
        *cables(n, rate, lambda host: (f"host{host}", f"rack{host // size}")),
        *cables(many, size * rate / oversubscription, lambda rack: (f"rack{rack}", "core")),
    )
    return Network(f"racks:size={size},oversubscription={oversubscription:g}", hardware, place, fabric, path)


NETWORKS: Mapping[str, Callable[..., Network]] = {
    "flat": flat,
    "two-levels": two_levels,
    "racks": racks,
}
"""Name -> the function that makes the network from hosts, a hardware, and the options behind the name."""

_KINDS: Mapping[Any, Callable[[str], Any]] = {int: int, float: float}


def network(text: str, hosts: Hosts, hardware: Hardware | None = None) -> Network:
    """The network of this name for these hosts. Raises ArgumentError.

    text: a name of `NETWORKS`, and options behind a colon: `racks:size=8,oversubscription=2`.
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
