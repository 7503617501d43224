"""Costs of this host: found again from times that were made of them, kept, and used in prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.base.errors import ArgumentError
from unisono.base.tuning import LIMITS, HostCosts, Rates, TuningResults, save
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.simulate import Timed, calibrate, known_costs, like_this_host, price_here, trusted

COSTS = HostCosts(2e-6, 5e-7, (Rates(64 << 10, 3e-11, 1e-10, 2e-11), Rates(1 << 20, 7e-11, 2e-10, 5e-11)))
NAMES = ("all_reduce.one_shot", "all_reduce.two_shot", "all_reduce.tree", "broadcast.linear", "all_gather.direct")
SEGMENT = 512 << 10


def timed(costs: HostCosts, sizes: tuple[int, ...]) -> list[Timed]:
    """Calls of two ranks that take what they should."""
    found = []
    for name in NAMES:
        for size in sizes:
            algorithm = CATALOGUE[name]
            found.append(Timed(algorithm, size, price_here(algorithm, 2, size, costs, SEGMENT).seconds))
    return found


def test_a_price_is_its_formula() -> None:
    size, rates = 64 << 10, COSTS.rates[0]
    for p, off in ((2, 1e-6), (3, 0.2), (5, 0.2)):  # what comes first is added while the rest is fetched
        got = price_here(CATALOGUE["all_reduce.one_shot"], p, size, COSTS, SEGMENT)
        bytes_s = size * (rates.own_s + (p - 1) * (rates.copy_s + rates.combine_s))
        assert got.seconds == pytest.approx(COSTS.call_s + COSTS.step_s + bytes_s, rel=off)
        assert p > 2 or got.latency == pytest.approx(COSTS.call_s + COSTS.step_s)
        assert got.seconds == pytest.approx(got.latency + got.transfer + got.combine)


def test_costs_are_found_again_from_the_times_that_they_make() -> None:
    found = calibrate(timed(COSTS, (8, 64 << 10, 1 << 20)), 2, SEGMENT)
    assert found.call_s == pytest.approx(COSTS.call_s, rel=0.01)
    assert found.step_s == pytest.approx(COSTS.step_s, rel=0.01)
    for got, want in zip(found.rates, COSTS.rates, strict=True):
        assert got.nbytes == want.nbytes
        assert got[1:] == pytest.approx(want[1:], rel=0.05)


def test_a_cost_is_never_below_what_is_possible() -> None:
    """Where a call of more rounds, or of more sums, was timed as the faster one, by chance."""
    slow = [one._replace(seconds=one.seconds * (3 if one.algorithm.name == "two_shot" else 1)) for one in
            timed(COSTS, (8, 64 << 10))]  # fmt: skip
    found = calibrate(slow, 2, SEGMENT)
    assert min(found.call_s, found.step_s, *found.rates[0][1:]) > 0
    fast = [one._replace(seconds=one.seconds / (4 if one.algorithm.name == "tree" else 1)) for one in slow]
    found = calibrate(fast, 2, SEGMENT)
    assert min(found.call_s, found.step_s, *found.rates[0][1:]) > 0


def test_calls_that_take_what_they_should_leave_no_residual() -> None:
    right = timed(COSTS, (8, 64 << 10, 1 << 20))
    assert (calibrate(right, 2, SEGMENT).residual or 0) < 0.01
    off = [one._replace(seconds=one.seconds * (1.5 if k % 2 else 0.5)) for k, one in enumerate(right)]
    assert 0.2 < (calibrate(off, 2, SEGMENT).residual or 0) < 1


def test_a_fit_on_the_least_that_is_possible_is_not_trusted() -> None:
    right = timed(COSTS, (8, 64 << 10, 1 << 20))
    kept, wrong = trusted(calibrate(right, 2, SEGMENT))
    assert kept is not None
    assert wrong == []
    assert len(kept.rates) == 2
    alike = [one._replace(seconds=2e-6) if one.nbytes == 8 else one for one in right]
    assert trusted(calibrate(alike, 2, SEGMENT)) == (None, ["a further round: 20 ns"])
    flat = [one._replace(seconds=1e-4) if one.nbytes == 64 << 10 else one for one in right]
    kept, wrong = trusted(calibrate(flat, 2, SEGMENT))
    assert kept is not None
    assert [rates.nbytes for rates in kept.rates] == [1 << 20]
    assert wrong == ["in calls on 64 KiB, what a rank copies and what a rank adds: 1 MiB in 5.24 µs"]


def test_between_two_sizes_costs_are_between_theirs() -> None:
    assert COSTS.rates_of(8)[1:] == COSTS.rates[0][1:]
    assert COSTS.rates_of(1 << 30)[1:] == COSTS.rates[1][1:]
    middle = COSTS.rates_of(256 << 10)
    assert middle.nbytes == 256 << 10
    assert middle.copy_s == pytest.approx((1e-10 * 2e-10) ** 0.5)
    assert COSTS.rates_of(1 << 20)[1:] == pytest.approx(COSTS.rates[1][1:])


def test_a_network_s_hosts_may_be_like_this_one() -> None:
    found = like_this_host(COSTS, 1 << 20)
    assert found.inside.latency_s == COSTS.step_s
    assert found.inside.bytes_per_s == pytest.approx(5e9)
    assert found.combine_bytes_per_s == pytest.approx(2e10)


def test_what_is_not_known_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_MEASURED", str(tmp_path / "figures.json"))
    with pytest.raises(ArgumentError, match="run `unisono tune`"):
        known_costs()
    save(TuningResults("2026-11-22", dict.fromkeys(LIMITS, 1 << 20)))
    with pytest.raises(ArgumentError, match="run `unisono tune`"):
        known_costs()
    save(TuningResults("2026-11-22", dict.fromkeys(LIMITS, 1 << 20), COSTS))
    assert known_costs() == COSTS
