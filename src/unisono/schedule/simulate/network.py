"""The network as data: links with their rates, and which of them a message takes.

Every host has a port at one switch that never blocks, which its ranks share: two of the levels of Karonis, de Supinski,
Foster, Gropp, Lusk and Bresnahan 2000. With one rank on each host this is the model of most papers, as in Chan,
Heimlich, Purkayastha and van de Geijn 2007.

All links carry one direction. A rank has two links of its own, at the rate at which it copies. Between hosts a message
takes the sender's link, the links of both hosts, and the receiver's link. Within a host the receiver fetches the
message, which takes the receiver's link only.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...base.link import Link
from ..hosts import Hosts

Ints = npt.NDArray[np.int64]
Links = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Hardware:
    """The rates and latencies of hosts and their links.

    Attributes:
        between: A message between hosts, and a host's link.
        inside: A message between ranks of a host.
        message_share: The part of the latency between hosts for which a message keeps a rank busy; with Gloo it is 35
            to 50 of 100 microseconds.
        eager_bytes: Longer messages wait for their receiver, as in the model LogGPS (Ino, Fujimoto and Hagihara 2001).
        combine_bytes_per_s: The rate at which a rank combines what it has received.
    """

    between: Link = field(default_factory=Link)
    inside: Link = Link(1e-6, 5e9)  # noqa: RUF009  frozen
    message_share: float = 0.4
    eager_bytes: int = 64 << 10
    combine_bytes_per_s: float = 10e9

    @property
    def message_s(self) -> float:
        """Seconds between two messages that a rank sends in one round."""
        return self.message_share * self.between.latency_s


@dataclass(frozen=True)
class Network:
    """Ranks, their hosts, and numbered links: 0 is no link, then come the outward links of ranks, their inward links,
    the outward links of hosts, and their inward links.
    """

    hosts: Hosts
    hardware: Hardware = field(default_factory=Hardware)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.hosts.ranks

    @cached_property
    def places(self) -> Ints:
        """For each rank the number of its host."""
        return np.array(self.hosts.places)

    @cached_property
    def rates(self) -> Numbers:
        """Bytes per second of each link."""
        rates = np.inf, self.hardware.inside.bytes_per_s, self.hardware.between.bytes_per_s
        return np.repeat(rates, (1, 2 * self.ranks, 2 * len(self.hosts.members)))

    def far(self, src: Ints, dst: Ints) -> npt.NDArray[np.bool_]:
        """Which messages go from host to host."""
        return np.asarray(self.places[src] != self.places[dst])

    def route(self, src: Ints, dst: Ints) -> Links:
        """A column of links for each message; 0 fills it."""
        far, of_hosts = self.far(src, dst), 1 + 2 * self.ranks
        leaves, enters = of_hosts + self.places[src], of_hosts + len(self.hosts.members) + self.places[dst]
        return np.stack([1 + self.ranks + dst, (1 + src) * far, leaves * far, enters * far]).astype(np.int32)

    def latency(self, src: Ints, dst: Ints) -> Numbers:
        """Seconds from the time when the last byte of a message leaves until it arrives."""
        near = np.where(src == dst, 0.0, self.hardware.inside.latency_s)
        return np.where(self.far(src, dst), self.hardware.between.latency_s, near)

    def link_name(self, number: int) -> str:
        """The name of a link: `rank3 out`, `rank3 in`, `host3 out` or `host3 in`."""
        name, many, number = "rank", self.ranks, number - 1
        if number >= 2 * many:
            name, many, number = "host", len(self.hosts.members), number - 2 * many
        return f"{name}{number % many} {'out' if number < many else 'in'}"
