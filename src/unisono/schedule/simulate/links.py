"""A network as data: its links with their rates, and which of them a message takes.

All links carry one direction. A rank has two links of its own, at the rate at which it copies. Between hosts a message
takes the sender's link, the fabric, and the receiver's link. Within a host the receiver fetches the message, which
takes the receiver's link only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import ArgumentError
from ...base.link import Link

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

    def slow(self, text: str) -> Network:
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
