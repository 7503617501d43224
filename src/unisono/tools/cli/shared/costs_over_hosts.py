"""What `explain` and `draw` make of --hosts: the call over these hosts, its costs by level, its proof."""

import time
from dataclasses import dataclass

from rich.table import Table

from ....base.config import Config
from ....base.errors import ArgumentError
from ....base.link import Link
from ....base.units import format_seconds, plural
from ....schedule import Hosts, Levels, N, Schedule, lower_bounds, prove, sample
from ....schedule.algorithms import find
from ....schedule.algorithms.catalogue import COLLECTIVES
from ....schedule.algorithms.over_hosts import CORES, expected_rows
from ....schedule.choose.over_hosts import (
    choose_spanning,
    gated_rounds,
    messages_at_once,
    time_between,
    time_inside,
)
from ....schedule.exchange import file_algorithm
from .printing import amount_text, plain_table
from .target import MOST_EXACT, MOST_ROWS, Facts


@dataclass(frozen=True)
class OverHosts:
    """The table of a call over hosts, what is between them and why, and the link that decided."""

    table: Schedule
    hosts: Hosts
    core: str
    rails: int
    why: str
    link: Link

    @property
    def across(self) -> str:
        """What is between the hosts, such as `8 × all_reduce.circulant of 4 hosts`."""
        many = f"{self.rails} × " if self.rails > 1 else ""
        return f"{many}{self.table.collective}.{self.core} of {len(self.hosts.members)} hosts"


def known_hosts(hosts: str, ranks: int | None, default: int = 4) -> tuple[Hosts | None, int]:
    """The hosts that a user named, if there are several, and the number of ranks.

    Raises ArgumentError if these do not agree.
    """
    if not hosts:
        return None, default if ranks is None else ranks
    found = Hosts.parse(hosts)
    if ranks not in (None, found.ranks):
        raise ArgumentError(f"--hosts {hosts} has {plural(found.ranks, 'rank')}. Leave out --ranks {ranks}.")
    return (found if found.spans else None), found.ranks


def config_with(link: str) -> Config:
    """The settings, with this link if it is named."""
    config = Config.from_env()
    return config.replace(link=Link.parse(link)) if link else config


def find_call(name: str, hosts: Hosts, *, root: int = 0, nbytes: int = 16 << 20, link: str = "") -> OverHosts | None:
    """The call that this name means on several hosts; None for a table that knows no hosts, such as all_reduce.swing.

    An all_to_all and a scan have no other tables.

    Raises ArgumentError, also for a table that would be too large.
    """
    collective, _, short = name.partition(".")
    if ".py:" in name or file_algorithm(name) or (collective in COLLECTIVES and collective not in CORES):
        return None
    if short and find(collective, short).name not in CORES[collective]:
        return None
    config = config_with(link)
    chosen = choose_spanning(collective, nbytes, hosts, config, short or None)
    why = "you named it" if short else chosen.why
    core, rails = chosen.core or "", chosen.rails or 1
    if (rows := expected_rows(collective, hosts, rails, core)) > MOST_ROWS:
        raise ArgumentError(f"{chosen.name} over {hosts.text} would have about {rows:.2g} rows. Give fewer hosts.")
    return OverHosts(chosen.make(collective, hosts, root), hosts, core, rails, why, config.link)


def prove_call(table: Schedule) -> Facts:
    """The proof of a call. Of a large one, a sample of chunks is followed."""
    begin = time.perf_counter()
    chunks = None if table.ranks <= MOST_EXACT else sample(table.chunks, int(table.rows[:, N].sum()))
    proof = prove(table, chunks=chunks)
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
    kind, hosts = found.table.collective, found.hosts
    moved = 0.0 if kind == "barrier" else levels.most * nbytes
    rounds, at_once = gated_rounds(kind, levels.between, hosts), messages_at_once(kind, found.core, hosts)
    between = time_between(rounds, moved, found.rails, found.link, at_once)
    return time_inside(kind, nbytes, hosts, found.rails), between
