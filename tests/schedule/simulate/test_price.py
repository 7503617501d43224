"""Prices: by hand where that can be done."""

import pytest

from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.schedule import Hosts
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.simulate import Candidate, Hardware, Network, candidates, clocks, messages, play, price
from unisono.schedule.simulate.clocks import Clocks, Round

PLAIN = Hardware(Link(10e-6, 1e9), Link(1e-6, 4e9), message_share=0.0, combine_bytes_per_s=2e9)
MANY = 64 << 20


def priced(name: str, shape: str, nbytes: int, hardware: Hardware = PLAIN, **more: object):
    where = Network(Hosts.parse(shape), hardware)
    return price(table(name, where.ranks), where, nbytes, **more)


def table(name: str, ranks: int) -> Candidate:
    """An algorithm of the catalogue, to be priced."""
    return Candidate(name, lambda: messages(CATALOGUE[name].schedule(ranks)))


def test_ring_takes_what_its_formula_says() -> None:
    p = 8
    got = priced("all_reduce.ring", "8x1", MANY)
    # Source: Patarasuk and Yuan 2009; the sums of p - 1 rounds on top.
    assert got.latency == pytest.approx(2 * (p - 1) * 10e-6)
    assert got.transfer == pytest.approx(2 * (p - 1) * MANY / p / 1e9)
    assert got.combine == pytest.approx((p - 1) * MANY / p / 2e9)
    assert got.seconds == pytest.approx(got.latency + got.transfer + got.combine)
    assert got.bound == "transfers"
    assert priced("all_reduce.ring", "8x1", 8).bound == "latency"


def test_ranks_of_a_host_share_its_port() -> None:
    got = priced("all_to_all.direct", "2x4", MANY)
    assert got.link in ("host0 out", "host1 out", "host0 in", "host1 in")
    assert got.seconds == pytest.approx(4 * 4 * MANY / 8 / 1e9, rel=0.1)
    assert priced("all_to_all.direct", "8x1", MANY).seconds < got.seconds / 2


def test_late_rank_costs_what_it_is_late() -> None:
    plain, late = (priced("all_reduce.tree", "4x1", 8, late=late) for late in ({}, {3: 0.5}))
    assert late.seconds == pytest.approx(plain.seconds + 0.5, abs=20e-6)


def test_segments_of_one_host_overlap() -> None:
    naive = [priced("scan.linear", "1x4", MANY, segment_bytes=s) for s in (0, 1 << 20)]
    assert naive[1].seconds < naive[0].seconds / 2
    one, hosts = CATALOGUE["scan.linear"].schedule(4), Hosts.parse("1x4")
    where = Network(hosts, PLAIN)
    whole = play(messages(one) * 64, where, MANY / 64).ready.max()
    assert naive[1].seconds == pytest.approx(float(whole), rel=1e-6)


def test_steady_rounds_are_not_played_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts.parse("32x2")
    where, one = Network(hosts), CATALOGUE["all_reduce.ring"].symmetric(64)
    assert one is not None
    ring, played = Candidate("ring", lambda: messages(one)), []
    monkeypatch.setattr(clocks, "_EXACT", 48)
    monkeypatch.setattr(clocks, "_WINDOW", 8)
    plain = Clocks.play

    def counted(every: Clocks, now: Round) -> None:
        played.append(now)
        plain(every, now)

    monkeypatch.setattr(Clocks, "play", counted)
    short = price(ring, where, MANY)
    assert len(played) == 32, "of either half two stretches: the second is as long as the first on all ranks"
    monkeypatch.setattr(clocks, "_EXACT", 10**6)
    monkeypatch.setattr(clocks, "_WINDOW", 10**6)
    assert short.seconds == pytest.approx(price(ring, where, MANY).seconds, rel=1e-9)


def test_too_large_simulations_are_left_out() -> None:
    said = {one.name: one.why_not for one in candidates("all_reduce", Hosts.parse("256x8"), 1 << 30)}
    assert "its table would have about 4.2e+06 rows" in said["all_reduce.one_shot"]
    assert not said["all_reduce.hierarchical"]


def test_no_price_is_below_the_bound() -> None:
    hosts = Hosts.parse("8x8")
    where = Network(hosts)
    best = min(price(one, where, 1 << 30).seconds for one in candidates("all_reduce", hosts, 1 << 30))
    assert best > 2 * (1 << 30) * 7 / 8 / 1.25e9


def test_65_536_ranks() -> None:
    hosts = Hosts.parse("8192x8")
    where = Network(hosts, PLAIN)
    name = "all_reduce.circulant of all ranks"
    one = next(some for some in candidates("all_reduce", hosts, 8) if some.name == name)
    assert not one.why_not
    got = price(one, where, 8)
    assert got.bound == "latency"
    assert got.seconds > 2 * 13 * 10e-6


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"unknown collective 'all_redcue'. Did you mean all_reduce"):
        list(candidates("all_redcue", Hosts.parse("2x2"), 8))
    with pytest.raises(ArgumentError, match="all_gather: got root 1, expected none"):
        list(candidates("all_gather", Hosts.parse("2x2"), 8, 1))
