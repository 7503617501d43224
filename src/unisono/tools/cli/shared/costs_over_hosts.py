"""What `explain` and `draw` make of --hosts: the call over these hosts, its costs by level, its parts, its proof."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from ....base.config import Config
from ....base.errors import ArgumentError
from ....base.link import Link
from ....base.units import format_seconds, plural
from ....schedule import Hosts, Levels, lower_bounds, prove, sample
from ....schedule.algorithms import find
from ....schedule.algorithms.over_hosts import CORES, HierarchicalTable, Part
from ....schedule.choose.over_hosts import (
    choose_spanning,
    messages_at_once,
    time_between,
    time_inside,
)
from ....schedule.exchange import file_algorithm
from .printing import amount_text, plain_table
from .target import MOST_EXACT, Facts


@dataclass(frozen=True)
class OverHosts:
    """A call over hosts, the reason for its form, and the link that decided."""

    call: HierarchicalTable
    rails: int
    why: str
    link: Link

    @property
    def at_once(self) -> int:
        """The number of messages that a rank sends to other hosts in a round."""
        return messages_at_once(self.call.collective, self.call.across[0].name, self.call.hosts)


def known_hosts(hosts: str, ranks: int | None, default: int = 4) -> tuple[Hosts | None, int]:
    """The hosts that a user named, if there are several, and the number of ranks.

    Raises ArgumentError if these do not agree.
    """
    if not hosts:
        return None, default if ranks is None else ranks
    found = Hosts.parse(hosts)
    if ranks not in (None, found.ranks):
        raise ArgumentError(f"--hosts {hosts} are {plural(found.ranks, 'rank')}: leave out --ranks {ranks}")
    return (found if found.spans else None), found.ranks


def find_call(name: str, hosts: Hosts, *, root: int = 0, nbytes: int = 16 << 20, link: str = "") -> OverHosts | None:
    """The call that this name means on several hosts; None for a table that knows no hosts, such as all_reduce.swing.

    Raises ArgumentError.
    """
    collective, _, short = name.partition(".")
    if ".py:" in name or file_algorithm(name):
        return None
    if short and find(collective, short).name not in CORES.get(collective, ()):
        return None
    config = Config.from_env()
    if link:
        config = config.replace(link=Link.parse(link))
    chosen = choose_spanning(collective, nbytes, hosts, config, short or None)
    why = "you named it" if short else chosen.why
    return OverHosts(chosen.make(collective, hosts, root), chosen.rails or 1, why, config.link)


def prove_call(call: HierarchicalTable) -> Facts:
    """The proof of a call. Of a large one, only the rows of a sample of chunks are made."""
    begin = time.perf_counter()
    few = call.hosts.ranks <= MOST_EXACT
    chunks = None if few else sample(call.chunks, 2 * call.hosts.ranks * call.chunks) or range(call.chunks)
    proof = prove(call.schedule(chunks), chunks=chunks)
    return Facts(None, proof, time.perf_counter() - begin)


def level_costs(
    collective: str, hosts: Hosts, root: int, found: Levels, size: str, times: tuple[float, float] | None = None
) -> Table:
    """The costs inside hosts and between hosts, beside the bounds. size: the vector's, as the user gave it."""
    bounds, n = lower_bounds(collective, hosts, root), len(hosts.members)

    def amount(fraction: float) -> str:
        by_host = abs(fraction * n - round(fraction * n)) < 1e-9  # 6/4 m is easier to read than 48/32 m
        return amount_text(fraction, n if by_host else hosts.ranks, size)

    table = plain_table("", "inside a host", "between hosts", "lower bound")
    table.add_row("rounds", f"{found.inside}", f"{found.between}", f"{bounds.rounds}")
    if collective != "barrier":
        sides = (("leaves", found.leaves, bounds.sent), ("enters", found.enters, bounds.received))
        for verb, amounts, bound in sides:
            equal = max(amounts) - min(amounts) < 1e-9
            who = "each host" if equal else "the busiest host"
            table.add_row(f"{verb} {who}", "-", amount(max(amounts)), amount(bound))
    if times:
        table.add_row("predicted", *map(format_seconds, times))
    return table


def times_of(found: OverHosts, levels: Levels, nbytes: int) -> tuple[float, float]:
    """Seconds inside hosts and between them."""
    call = found.call
    moved = 0.0 if call.collective == "barrier" else levels.most * nbytes
    between = time_between(levels.between, moved, found.rails, found.link, found.at_once)
    return time_inside(call.collective, nbytes, call.hosts, found.rails), between


def part_rows(call: HierarchicalTable) -> Iterator[tuple[str, str]]:
    """The parts, phase by phase, as lines: label and text."""
    for label, parts in (("before", call.before), ("across", call.across), ("after", call.after)):
        kinds = Counter((part.collective, part.name, len(part.members)) for part in parts)
        said = []
        for (collective, name, members), many in kinds.items():
            among = f"{members} ranks" if label != "across" or members == call.hosts.ranks else f"{members} hosts"
            times = f"{many} × " if many > 1 else ""
            said.append(f"{times}{collective}.{name} of {among}{_words(parts, collective, name)}")
        if said:
            yield label, "; ".join(said)


def _words(parts: Sequence[Part], collective: str, name: str) -> str:
    empty = all(not part.chunks for part in parts if (part.collective, part.name) == (collective, name))
    return " (words only: every host has entered before a result is written)" if empty else ""
