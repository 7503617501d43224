"""Prices on this host: costs from calls that were timed here, and from these costs the price of any table.

A price is a sum along the way of the rank that is ready last: rounds, bytes copied, bytes combined. So each timed call
is an equation for the costs of a round, a byte copied and a byte combined. The costs are the figures with which prices
are nearest to the times.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from ...base.errors import ArgumentError
from ...base.link import Link
from ...base.tuning import measured
from ...base.tuning_results import HostCosts, Rates
from ...base.units import format_bytes, format_seconds
from ..algorithms import Algorithm
from ..hosts import Hosts
from .networks import Hardware, Numbers, network
from .survey import Candidate, Price, price
from .table_messages import messages

_UNIT = HostCosts(0.0, 1e-6, (Rates(1, 0.0, 1e-10, 1e-10),))
"""Round figures. They decide which way is the longest only if two ways are about equal."""

_LEAST_STEP_S, _LEAST_BYTE_S = 2e-8, 5e-12
"""Signals and bytes between two processors take at least this time: a lower figure is noise."""

_LEAST_MIB = format_seconds(_LEAST_BYTE_S * (1 << 20))

_NEAR = 1.01  # a figure below the least figure times this is the least


class Timed(NamedTuple):
    """A call that was timed. nbytes: the size of its vector."""

    algorithm: Algorithm
    nbytes: int
    seconds: float


def known_costs() -> HostCosts:
    """The costs that `unisono tune` has measured on this machine. Raises ArgumentError if it has not."""
    found = measured()
    if found is None or found.costs is None:
        raise ArgumentError("the costs of this machine are not known yet: run `unisono tune`, which takes some seconds")
    return found.costs


def like_this_host(costs: HostCosts, nbytes: float, hardware: Hardware | None = None) -> Hardware:
    """A hardware whose hosts cost what this host costs in calls on `nbytes`. Links between hosts are as given."""
    rates, between = costs.rates_of(nbytes), (hardware or Hardware()).between
    return Hardware(between, Link(costs.step_s, 1 / rates.copy_s), combine_bytes_per_s=1 / rates.combine_s)


def price_here(algorithm: Algorithm, ranks: int, nbytes: int, costs: HostCosts, segment_bytes: int) -> Price:
    """The price of a call on this host."""
    where = network("two-levels", Hosts.one(ranks), like_this_host(costs, nbytes))
    one = Candidate(algorithm.full_name, partial(messages, algorithm.schedule(ranks)))
    return price(one, where, nbytes, segment_bytes=segment_bytes, costs=costs)


def calibrate(timed: Iterable[Timed], ranks: int, segment_bytes: int) -> HostCosts:
    """The costs with which prices are nearest to the times, by ratio, and how far off these prices are.

    timed: calls with several numbers of rounds on short vectors, and with several amounts of bytes on longer ones.
    """
    by_size: dict[int, list[Timed]] = {}
    for one in timed:
        by_size.setdefault(one.nbytes, []).append(one)
    few, *others = sorted(by_size)
    rounds, _, times = _equations(by_size[few], ranks, segment_bytes)
    of_few = np.column_stack([np.ones_like(rounds), rounds])
    call_s, step_s = _least_squares(of_few, times, times, _LEAST_STEP_S)
    rates, off = [], [of_few @ [call_s, step_s] / times - 1]
    for size in others:
        rounds, amounts, times = _equations(by_size[size], ranks, segment_bytes)
        calls = call_s + rounds * step_s
        figures = _least_squares(amounts, times - calls, times, _LEAST_BYTE_S)
        rates.append(Rates(size, *figures))
        off.append((calls + amounts @ figures) / times - 1)
    residual = float(np.sqrt(np.mean(np.concatenate(off) ** 2)))
    return HostCosts(call_s, step_s, tuple(rates), residual)


def trusted(costs: HostCosts) -> tuple[HostCosts | None, list[str]]:
    """The costs without the fits in which a figure is the least possible, and these fits in words.

    Such a fit is noise, with all its figures. None if too few costs are left: a price needs the cost of a call, the
    cost of a round, and the rates of one size.
    """

    def least(figures: Sequence[float], bound_s: float, names: Sequence[str]) -> list[str]:
        return [name for name, figure in zip(names, figures, strict=True) if figure <= bound_s * _NEAR]

    calls = least(costs[:2], _LEAST_STEP_S, ("a call", "a further round"))
    wrong = [f"{' and '.join(calls)}: {format_seconds(_LEAST_STEP_S)}"] if calls else []
    rates = []
    for some in costs.rates:
        if bad := least(some[1:], _LEAST_BYTE_S, ("its own vector", "what a rank copies", "what a rank adds")):
            wrong.append(f"in calls on {format_bytes(some.nbytes)}, {' and '.join(bad)}: 1 MiB in {_LEAST_MIB}")
        else:
            rates.append(some)
    return (costs._replace(rates=tuple(rates)) if rates and not calls else None), wrong


def _equations(timed: Sequence[Timed], ranks: int, segment_bytes: int) -> tuple[Numbers, Numbers, Numbers]:
    """For calls on vectors of one size: rounds; bytes (columns own, copied and combined); times."""
    prices = [price_here(one.algorithm, ranks, one.nbytes, _UNIT, segment_bytes) for one in timed]
    rounds = np.array([found.latency for found in prices]) / _UNIT.step_s
    copied = np.array([found.transfer for found in prices]) / _UNIT.rates[0].copy_s
    combined = np.array([found.combine for found in prices]) / _UNIT.rates[0].combine_s
    own = np.array([one.nbytes for one in timed], float)
    return rounds, np.column_stack([own, copied, combined]), np.array([one.seconds for one in timed])


def _least_squares(amounts: Numbers, times: Numbers, scale: Numbers, least: float) -> list[float]:
    """Costs such that amounts times costs are times, by ratio to `scale`, and no cost is below `least`.

    Some costs may be at `least`. It tries all choices of these, and takes the one that comes nearest.
    """
    left, best, found = times - amounts.sum(axis=1) * least, np.inf, np.zeros(amounts.shape[1])
    for free in product((True, False), repeat=len(found)):
        tried = np.zeros(len(found))
        tried[list(free)] = np.linalg.lstsq(amounts[:, free] / scale[:, None], left / scale, rcond=None)[0]
        off = float((((amounts @ tried - left) / scale) ** 2).sum())
        if (tried >= 0).all() and off < best:
            best, found = off, tried
    return [float(cost) + least for cost in found]
