"""Networks as data: links with their rates, and which of them a message takes; and networks by name, as a user writes
them: `flat`, `two-levels`, `racks:size=8,oversubscription=2`.

All links carry one direction. A rank has two links of its own, at the rate at which it copies. Between hosts a message
takes the sender's link, the links between hosts, and the receiver's link. Within a host the receiver fetches the
message, which takes the receiver's link only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...base.errors import ArgumentError
from ...base.link import Link
from ..hosts import Hosts

Ints = npt.NDArray[np.int64]
Links = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Hardware:
    """The rates and latencies of hosts and their links.

    between: a message between neighbouring hosts, and a host's link.
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
    """Ranks and the links between them, by number: 0 is none, then ranks outwards, ranks inwards, hosts up, hosts down,
    and with racks, racks up and racks down.

    places: for each rank the number of its host in this network.
    size: the number of hosts in a rack; 0: all hosts are at one switch.
    oversubscription: how much more the hosts of a rack can send than its link to the core carries.
    """

    name: str
    hardware: Hardware
    places: Ints
    size: int = 0
    oversubscription: float = 1.0

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.places)

    @property
    def one_host(self) -> bool:
        """Do all ranks share a host?"""
        return bool((self.places == self.places[0]).all())

    @cached_property
    def hosts(self) -> int:
        """The number of hosts."""
        return int(self.places.max()) + 1

    @property
    def racks(self) -> int:
        """The number of racks."""
        return -(-self.hosts // self.size) if self.size else 0

    @cached_property
    def rates(self) -> Numbers:
        """Bytes per second by the number of a link."""
        between, core = self.hardware.between.bytes_per_s, self.size / self.oversubscription
        kinds = (1, np.inf), (2 * self.ranks, self.hardware.inside.bytes_per_s), (2 * self.hosts, between)
        return np.concatenate([np.full(many, rate) for many, rate in (*kinds, (2 * self.racks, core * between))])

    def far(self, src: Ints, dst: Ints) -> npt.NDArray[np.bool_]:
        """Which messages go from host to host."""
        return np.asarray(self.places[src] != self.places[dst])

    def route(self, src: Ints, dst: Ints) -> Links:
        """A column of links for each message; 0 fills it."""
        far, a, b = self.far(src, dst), self.places[src], self.places[dst]
        up = 1 + 2 * self.ranks
        links = [1 + self.ranks + dst, (1 + src) * far, (up + a) * far, (up + self.hosts + b) * far]
        if self.size:
            a, b, up = a // self.size, b // self.size, up + 2 * self.hosts
            links += [(up + a) * (a != b), (up + self.racks + b) * (a != b)]
        return np.stack(links).astype(np.int32)

    def latency(self, src: Ints, dst: Ints, route: Links) -> Numbers:
        """Seconds from the time when the last byte of a message leaves until it arrives."""
        hardware = self.hardware
        away = hardware.between.latency_s + hardware.hop_s * np.maximum((route[2:] > 0).sum(axis=0) - 2, 0)
        return np.where(self.far(src, dst), away, np.where(src == dst, 0.0, hardware.inside.latency_s))

    def link_name(self, number: int) -> str:
        """The name of a link, such as `host3-rack0`; the links of a rank are `rank3 out` and `rank3 in`."""
        number -= 1
        if number < 2 * self.ranks:
            return f"rank{number % self.ranks} {'out' if number < self.ranks else 'in'}"
        number -= 2 * self.ranks
        if number < 2 * self.hosts:
            back, host = divmod(number, self.hosts)
            ends = [f"host{host}", f"rack{host // self.size}" if self.size else "switch"]
        else:
            back, rack = divmod(number - 2 * self.hosts, self.racks)
            ends = [f"rack{rack}", "core"]
        return "-".join(ends[::-1] if back else ends)


NETWORKS: Mapping[str, str] = {
    "flat": "every rank has its own port at one switch, also within a host: the model of most papers, as in Chan, "
    "Heimlich, Purkayastha and van de Geijn 2007",
    "two-levels": "every host has one port at one switch; its ranks share it: two of the levels of Karonis, "
    "de Supinski, Foster, Gropp, Lusk and Bresnahan 2000",
    "racks": "every host has a port at the switch of its rack, and each of these has a port at one core switch, as in "
    "the data centers of Al-Fares, Loukissas and Vahdat 2008",
}
"""Name -> what it is, and its source. The switches never block."""


def network(text: str, hosts: Hosts, hardware: Hardware | None = None) -> Network:
    """The network of this name for these hosts. Raises ArgumentError.

    text: a name of `NETWORKS`; racks have options behind a colon: `racks:size=8,oversubscription=2`.
    """
    name, _, rest = text.strip().partition(":")
    if name not in NETWORKS:
        raise ArgumentError(f"{name!r} is no network; there are: {', '.join(NETWORKS)}")
    kinds: Mapping[str, type] = {"size": int, "oversubscription": float} if name == "racks" else {}
    known, given = f"{name} takes {', '.join(kinds) or 'nothing'}", dict[str, float]()
    for part in filter(None, rest.split(",")):
        key, equals, value = map(str.strip, part.partition("="))
        if not equals:
            key, value = next(iter(kinds), ""), key
        if key not in kinds or key in given:
            raise ArgumentError(f"network {text!r}: {part!r} is not known here; {known}")
        try:
            given[key] = kinds[key](value)
        except ValueError:
            raise ArgumentError(f"network {text!r}: {value!r} is no value of {key}; {known}") from None
    places, hardware = np.array(hosts.places), hardware or Hardware()
    if name != "racks":
        return Network(name, hardware, places if name == "two-levels" else np.arange(hosts.ranks))
    size, oversubscription = int(given.get("size", 8)), given.get("oversubscription", 2.0)
    if size < 1:
        raise ArgumentError(f"racks: size={size}: expected a number of hosts, from 1 up")
    if oversubscription <= 0:
        raise ArgumentError(f"network {text!r}: oversubscription must be above 0")
    return Network(f"racks:size={size},oversubscription={oversubscription:g}", hardware, places, size, oversubscription)
