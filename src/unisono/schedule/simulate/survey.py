"""The cost of every algorithm of a collective on a network, and what bounds it."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.units import plural
from ..algorithms import CATALOGUE
from ..algorithms.catalogue import check_collective
from ..algorithms.over_hosts import CORES, RAILED, expected_rows, spanning, spanning_name
from ..choose.over_hosts import choose_spanning
from ..contract import ROOTED
from ..hosts import Hosts
from ..table import Schedule
from .clocks import play
from .network import Network
from .table_messages import Messages, messages

_MOST_ROWS, _MOST_ROUNDS = 4_000_000, 20_000
"""Larger tables are not made, unless all ranks do the same: then the rows of one rank are enough."""

_FEW = 512  # up to this number of ranks any table is made


class Candidate(NamedTuple):
    """An algorithm that could do a collective, for pricing.

    Attributes:
        name: The name of the table.
        make: Makes its messages.
        why_not: Why it is left out, or "".
        algorithm: The algorithm that makes the table, or its parts between hosts.
        priced_only: Why no call over these hosts can choose it, or "".
    """

    name: str
    make: Callable[[], list[Messages]]
    why_not: str = ""
    algorithm: str = ""
    priced_only: str = ""


class Price(NamedTuple):
    """The time of a call.

    Attributes:
        latency: A part of this time, for the rank that is ready last; so are `transfer` and `combine`.
        link: The busiest link.
        link_s: How long it is used.
    """

    name: str
    seconds: float
    latency: float
    transfer: float
    combine: float
    link: str
    link_s: float

    @property
    def parts(self) -> dict[str, float]:
        """The parts by name, which are `latency`, `transfers` and `sums`."""
        return {"latency": self.latency, "transfers": self.transfer, "sums": self.combine}

    @property
    def bound(self) -> str:
        """The name of the part that takes most of the time."""
        return max(self.parts, key=self.parts.__getitem__)


def candidates(
    collective: str, hosts: Hosts, nbytes: float, root: int = 0, config: Config | None = None
) -> Iterator[Candidate]:
    """All algorithms of a collective in the catalogue, and its tables over these hosts.

    A table over hosts is named by the algorithm between hosts and the number of rails: `all_reduce.spanning circulant
    ×8`. The bytes and the link in `config` decide which of these a call can choose; see `choose_spanning`.

    Raises:
        ArgumentError: There is no such collective.
    """
    p, n = hosts.ranks, len(hosts.members)
    check_collective(collective)
    if not 0 <= root < p or (root and collective not in ROOTED):
        fits = f"0 to {p - 1}" if collective in ROOTED else "none"
        raise ArgumentError(f"{collective}: got root {root}, expected {fits}")
    cores = CORES.get(collective, ()) if hosts.spans else ()
    shared = any(len(host) > 1 for host in hosts.members)
    for a in CATALOGUE.values():
        if a.collective != collective or not a.allows(p) or (a.name in cores and not shared):
            continue  # no ranks share a host, so the table over hosts is the same
        name = f"{a.full_name} of all ranks" if a.name in cores else a.full_name
        why = "its name means what hosts do between each other" if a.name in cores else ""
        one = a.symmetric(p) if p > _FEW else None
        if one is not None:
            yield Candidate(name, partial(messages, one), "", a.name, why)
        else:
            large = _too_large(*a.expected(p)) if p > _FEW else ""
            yield Candidate(name, partial(_made, a.schedule, p, root), large, a.name, why)
    for core in cores:
        a = CATALOGUE[f"{collective}.{core}"]
        chosen = choose_spanning(collective, round(nbytes), hosts, config, core)
        for rails in dict.fromkeys((1, hosts.rails)) if collective in RAILED else (None,):
            name = spanning_name(collective, hosts, rails, core, chosen.segments)
            why = "" if name == chosen.name else f"a call of this size takes {plural(chosen.rails or 1, 'rail')}"
            form = partial(spanning, rails=rails, core=core, segments=chosen.segments)
            large = _too_large(expected_rows(collective, hosts, rails, core), a.expected(n)[1]) if p > _FEW else ""
            yield Candidate(name, partial(_made, form, collective, hosts, root), large, core, why)


def price(
    one: Candidate,
    network: Network,
    nbytes: float,
    *,
    late: Mapping[int, float] | None = None,
    segment_bytes: int = 0,
) -> Price:
    """Play a candidate with a vector of `nbytes`.

    Args:
        late: For late ranks, by how many seconds they begin later.
        segment_bytes: The size of the segments of a call on one host. 0: one segment. A rank begins a segment when it
            has ended the one before.
    """
    size = 0.0 if one.name.startswith("barrier.") else nbytes
    segments = max(1, ceil(size / segment_bytes)) if segment_bytes and not network.hosts.spans else 1
    few, sections = min(segments, 3), one.make()
    done = play(sections * few, network, size / segments, late)
    rank = done.last
    seconds, parts, busy = float(done.ready[rank]), done.parts[rank], done.busy
    if segments > few:
        less = play(sections * (few - 1), network, size / segments, late)
        step, factor = seconds - float(less.ready.max()), segments - few
        parts = parts + (parts - less.parts[less.last]) * factor
        seconds, busy = seconds + step * factor, busy + (busy - less.busy) * factor
    link = int(np.argmax(busy))
    name = network.link_name(link) if busy[link] else ""
    more = max(float(busy[link]) - seconds, 0.0)  # rounds that overtake each other still share their links
    seconds, parts = seconds + more, parts + np.array([0.0, more, 0.0])
    latency, transfer, combine = parts.tolist()
    return Price(one.name, float(seconds), latency, transfer, combine, name, float(busy[link]))


def _made(make: Callable[..., Schedule], *of: Any) -> list[Messages]:
    return messages(make(*of))


def _too_large(rows: float, rounds: float) -> str:
    """Why a table with so many rows and rounds is not made; "" if it is."""
    if rows <= _MOST_ROWS and rounds <= _MOST_ROUNDS:
        return ""
    return f"left out: its table would have about {rows:.2g} rows in {rounds:.2g} rounds"
