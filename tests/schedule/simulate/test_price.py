"""Prices: by hand where that can be done, and held against the exact simulator over the whole catalogue.

Costs of this host: found again from times that were made of them, kept, and used in prices.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.exact_simulator import play_exactly
from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.base.tuning import save
from unisono.base.tuning_results import LIMITS, HostCosts, Rates, TuningResults
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.simulate import (
    NETWORKS,
    Candidate,
    Hardware,
    Timed,
    calibrate,
    candidates,
    clocks,
    known_costs,
    like_this_host,
    messages,
    network,
    play,
    price,
    price_here,
    routed,
    trusted,
)
from unisono.schedule.simulate.clocks import play_rounds

PLAIN = Hardware(Link(10e-6, 1e9), Link(1e-6, 4e9), hop_s=0.0, message_share=0.0, combine_bytes_per_s=2e9)
MANY = 64 << 20


def priced(name: str, shape: str, on: str, nbytes: int, hardware: Hardware = PLAIN, **more: object):
    hosts = Hosts.parse(shape)
    where = network(on, hosts, hardware)
    return price(table(name, hosts.ranks), where, nbytes, **more)


def table(name: str, ranks: int) -> Candidate:
    """An algorithm of the catalogue, to be priced."""
    return Candidate(name, lambda: messages(CATALOGUE[name].schedule(ranks)))


def test_a_ring_on_a_flat_network_is_its_formula() -> None:
    p = 8
    got = priced("all_reduce.ring", "8x1", "flat", MANY)
    # Source: Patarasuk and Yuan 2009; the sums of p - 1 rounds on top.
    assert got.latency == pytest.approx(2 * (p - 1) * 10e-6)
    assert got.transfer == pytest.approx(2 * (p - 1) * MANY / p / 1e9)
    assert got.combine == pytest.approx((p - 1) * MANY / p / 2e9)
    assert got.seconds == pytest.approx(got.latency + got.transfer + got.combine)
    assert got.bound == "transfers"
    assert priced("all_reduce.ring", "8x1", "flat", 8).bound == "latency"


def test_ranks_of_a_host_share_its_port() -> None:
    got = priced("all_to_all.direct", "2x4", "two-levels", MANY)
    assert got.link in ("host0-switch", "host1-switch", "switch-host0", "switch-host1")
    assert got.seconds == pytest.approx(4 * 4 * MANY / 8 / 1e9, rel=0.1)
    assert priced("all_to_all.direct", "2x4", "rails", MANY).seconds < got.seconds / 2


def test_a_slow_cable_holds_up_what_passes_it() -> None:
    hosts = Hosts.parse("8x1")
    where, ring = network("torus:8", hosts, PLAIN), table("all_gather.ring", 8)
    plain, slow = (price(ring, each, MANY) for each in (where, where.slow("host2-host3:x0.1")))
    assert slow.seconds == pytest.approx(10 * plain.seconds, rel=0.01)
    assert slow.link == "host2-host3"


def test_a_late_rank_costs_what_it_is_late() -> None:
    plain, late = (priced("all_reduce.tree", "4x1", "flat", 8, late=late) for late in ({}, {3: 0.5}))
    assert late.seconds == pytest.approx(plain.seconds + 0.5, abs=20e-6)


def test_segments_of_one_host_overlap() -> None:
    naive = [priced("scan.linear", "1x4", "two-levels", MANY, segment_bytes=s) for s in (0, 1 << 20)]
    assert naive[1].seconds < naive[0].seconds / 2
    one, hosts = CATALOGUE["scan.linear"].schedule(4), Hosts.parse("1x4")
    where = network("two-levels", hosts, PLAIN)
    whole = play(routed(messages(one), where) * 64, where, MANY / 64).ready.max()
    assert naive[1].seconds == pytest.approx(float(whole), rel=1e-6)


def test_compiled_or_not_the_loop_plays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts.parse("3x2")
    where = network("fat-tree", hosts)
    sections = routed(messages(CATALOGUE["all_to_all.hierarchical"].schedule(6)), where)
    fast = play(sections, where, MANY)
    monkeypatch.setattr(clocks, "_compiled", lambda: play_rounds)
    slow = play(sections, where, MANY)
    for a, b in zip(fast, slow, strict=True):
        assert np.allclose(a, b, rtol=1e-12)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("shape", ["4x2", "3x3"])
@pytest.mark.parametrize("name", NETWORKS)
def test_prices_agree_with_the_exact_simulator(name: str, shape: str) -> None:
    """Of all algorithms and sizes, at least 19 of 20 are within a tenth; those of rounds that overtake each other on a
    cable that several rails share are farther off.
    """
    hosts = Hosts.parse(shape)
    where = network(name, hosts)
    off = {}
    for collective in dict.fromkeys(a.collective for a in CATALOGUE.values()):
        for some in candidates(collective, hosts, 1 << 20):
            for nbytes in (8, 64 << 10, 1 << 20, MANY):
                size = 0 if collective == "barrier" else nbytes
                got, want = price(some, where, nbytes).seconds, play_exactly(some.make(), where, size)
                off[some.name, nbytes] = abs(got / want - 1)
    far = {key: value for key, value in off.items() if value > 0.1}
    assert len(far) <= len(off) / 20, far
    assert max(off.values()) < 0.4, far


def test_rounds_that_have_become_steady_are_not_played_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts.parse("32x2")
    where, one = network("two-levels", hosts), CATALOGUE["all_reduce.ring"].symmetric(64)
    assert one is not None
    ring, rounds = Candidate("ring", lambda: messages(one)), []
    monkeypatch.setattr(clocks, "_EXACT", 48)
    monkeypatch.setattr(clocks, "_WINDOW", 8)

    def counted(times: int, *arrays: object) -> None:
        rounds.append(times)
        play_rounds(times, *arrays)

    monkeypatch.setattr(clocks, "_compiled", lambda: counted)
    short = price(ring, where, MANY)
    assert rounds == [8, 8, 8, 8], "of either half, until one stretch is as long as the one before it on all ranks"
    monkeypatch.setattr(clocks, "_EXACT", 10**6)
    monkeypatch.setattr(clocks, "_WINDOW", 10**6)
    assert short.seconds == pytest.approx(price(ring, where, MANY).seconds, rel=1e-9)


def test_of_many_ranks_what_is_too_large_is_left_out_and_said() -> None:
    said = {one.name: one.why_not for one in candidates("all_reduce", Hosts.parse("256x8"), 1 << 30)}
    assert "its table would have about 4.2e+06 rows" in said["all_reduce.one_shot"]
    assert not said["all_reduce.hierarchical"]


def test_no_price_is_below_the_bound() -> None:
    hosts = Hosts.parse("8x8")
    where = network("fat-tree", hosts)
    best = min(price(one, where, 1 << 30).seconds for one in candidates("all_reduce", hosts, 1 << 30))
    assert best > 2 * (1 << 30) * 7 / 8 / 1.25e9


def test_65_536_ranks() -> None:
    hosts = Hosts.parse("8192x8")
    where = network("torus", hosts, replace(PLAIN, hop_s=1e-7))
    name = "all_reduce.circulant of all ranks"
    one = next(some for some in candidates("all_reduce", hosts, 8) if some.name == name)
    assert not one.why_not
    got = price(one, where, 8)
    assert got.bound == "latency"
    assert got.seconds > 2 * 13 * 10e-6


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'all_redcue' is no collective: did you mean all_reduce"):
        list(candidates("all_redcue", Hosts.parse("2x2"), 8))
    with pytest.raises(ArgumentError, match="all_gather has no root 1 among 4 ranks"):
        list(candidates("all_gather", Hosts.parse("2x2"), 8, 1))


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


def test_lanes_make_bytes_cheaper_but_not_rounds() -> None:
    costs = COSTS._replace(lanes=5, gain=3.0)
    assert costs.shared_by(1) == costs
    assert COSTS.shared_by(4) == COSTS  # it has not been measured what they are worth
    for lanes, faster in ((2, 1.5), (3, 2.0), (5, 3.0), (8, 3.0)):
        some, one = costs.shared_by(lanes).rates[0], COSTS.rates[0]
        assert some[1:] == pytest.approx([cost / faster for cost in one[1:]])
    assert costs.shared_by(5)[:2] == COSTS[:2]


def test_costs_are_found_again_from_the_times_that_they_make() -> None:
    right = timed(COSTS, (8, 64 << 10, 1 << 20))
    found = calibrate(right, 2, SEGMENT)
    assert (found.residual or 0) < 0.01
    assert found.call_s == pytest.approx(COSTS.call_s, rel=0.01)
    assert found.step_s == pytest.approx(COSTS.step_s, rel=0.01)
    for got, want in zip(found.rates, COSTS.rates, strict=True):
        assert got.nbytes == want.nbytes
        assert got[1:] == pytest.approx(want[1:], rel=0.05)
    off = [one._replace(seconds=one.seconds * (1.5 if k % 2 else 0.5)) for k, one in enumerate(right)]
    assert 0.2 < (calibrate(off, 2, SEGMENT).residual or 0) < 1


def test_a_cost_is_never_below_what_is_possible() -> None:
    """Where a call of more rounds, or of more sums, was timed as the faster one, by chance."""
    slow = [one._replace(seconds=one.seconds * (3 if one.algorithm.name == "two_shot" else 1)) for one in
            timed(COSTS, (8, 64 << 10))]  # fmt: skip
    found = calibrate(slow, 2, SEGMENT)
    assert min(found.call_s, found.step_s, *found.rates[0][1:]) > 0
    fast = [one._replace(seconds=one.seconds / (4 if one.algorithm.name == "tree" else 1)) for one in slow]
    found = calibrate(fast, 2, SEGMENT)
    assert min(found.call_s, found.step_s, *found.rates[0][1:]) > 0


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
