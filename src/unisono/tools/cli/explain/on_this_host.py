"""What a call takes on this host by each algorithm: its price, what was measured, and the least by these costs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.markup import escape
from rich.table import Table

from ....base.config import Config
from ....base.tuning import HostCosts
from ....base.units import format_seconds
from ....schedule.algorithms import CATALOGUE
from ....schedule.simulate import price_here
from ..shared.facts import bound_costs
from ..shared.paint import plain_table
from ..shared.target import Target

_SECONDS = 3.0
"""For all calls of `--measure` together, besides the start."""


def time_candidates(target: Target, nbytes: int) -> dict[str, float]:
    """Start ranks, and time a call by each algorithm of the catalogue: name -> seconds. Raises ArgumentError."""
    kind = target.algorithm.collective
    names = [some.name for some in CATALOGUE.values() if some.collective == kind and some.allows(target.ranks)]
    from ..tune.timed_here import time_here  # it loads torch

    return time_here(kind, names, target.ranks, nbytes, _SECONDS)


def on_this_host(target: Target, nbytes: int, costs: HostCosts | None, times: Mapping[str, float]) -> Table:
    """All algorithms of the catalogue, the fastest first, with the one that is explained in bold.

    costs: those of this machine, if they are known. times: measured seconds by the name of the algorithm.
    """
    kind, ranks, segment_bytes = target.algorithm.collective, target.ranks, Config.from_env().segment_bytes
    size = 0 if kind == "barrier" else nbytes
    prices: dict[str, float] = {}
    if costs:
        for some in CATALOGUE.values():
            if some.collective == kind and some.allows(ranks):
                prices[some.name] = price_here(some, ranks, size, costs, segment_bytes).seconds
    table = plain_table()
    columns = ["on this machine", *["predicted"] * bool(prices), *["measured"] * bool(times)]
    columns += ["predicted / measured"] * bool(prices and times)
    for column in columns:
        table.add_column(column)
    for name in sorted(prices or times, key=lambda name: times.get(name, prices.get(name, 0.0))):
        cells = [format_seconds(some[name]) for some in (prices, times) if some]
        ratio = [f"{prices[name] / times[name]:.2f}"] if prices and times else []
        mine = name == target.algorithm.name
        table.add_row(f"[bold]{escape(name)}[/]" if mine else escape(name), *cells, *ratio)
    if costs:
        table.add_row("the least by these costs", format_seconds(least_time(kind, ranks, size, costs)))
    return table


def least_time(collective: str, ranks: int, nbytes: int, costs: HostCosts) -> float:
    """What no algorithm should beat: a call of one round in which the busiest rank copies and combines what it must."""
    bounds, rates = bound_costs(collective, ranks), costs.rates_of(nbytes)
    copied, added = max(bounds.sent, bounds.received or 0.0), bounds.added or 0.0
    each_s = rates.own_s + copied * rates.copy_s + added * rates.combine_s
    return costs.call_s + costs.step_s + nbytes * each_s
