"""Prices, by hand where that can be done; routes lead from rank to rank, and messages are those of the rows."""

from itertools import product

import numpy as np
import pytest

from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.schedule import DST, SRC, Hosts, N, Schedule, count
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.simulate import Candidate, Hardware, Messages, Network, candidates, messages, play, price
from unisono.schedule.simulate.table_messages import MOST_MESSAGES

SHAPES = ["4x2", "3x3", "2+4+3", "9x1", "2x3:round_robin", "12x2"]


@pytest.mark.parametrize("shape", SHAPES)
def test_route_leads_from_rank_to_rank(shape: str) -> None:
    net = Network(Hosts.parse(shape))
    for src, dst in product(range(net.ranks), repeat=2):
        route = [net.link_name(k) for k in net.route(np.array([src]), np.array([dst]))[:, 0] if k]
        a, b = net.hosts.host_of(src), net.hosts.host_of(dst)
        between = [f"rank{src} out", f"host{a} out", f"host{b} in"] if a != b else []
        assert sorted(route) == sorted([*between, f"rank{dst} in"])


def test_links_have_the_figures_of_their_hardware() -> None:
    net = Network(Hosts.parse("8x2"), Hardware(Link(1e-4, 1e9), Link(1e-6, 4e9)))
    rates = {net.link_name(k): net.rates[k] for k in range(1, len(net.rates))}
    assert len(rates) == 2 * (16 + 8)
    assert rates["rank15 out"] == rates["rank0 in"] == 4e9
    assert rates["host7 out"] == rates["host0 in"] == 1e9
    assert net.latency(np.array([0, 0, 0]), np.array([0, 1, 2])).tolist() == pytest.approx([0, 1e-6, 1e-4])


def moved(sections: list[Messages]) -> np.ndarray:
    """What each rank sends each other, as parts of the vector."""
    total = np.zeros((sections[0].ranks, sections[0].ranks))
    for some in sections:
        np.add.at(total, (some.src, some.dst), some.share * some.weight * some.times)
    return total


def of_rows(schedule: Schedule) -> np.ndarray:
    rows, total = schedule.rows, np.zeros((schedule.ranks, schedule.ranks))
    np.add.at(total, (rows[:, SRC], rows[:, DST]), rows[:, N] / schedule.chunks)
    return total


@pytest.mark.parametrize("name", CATALOGUE)
def test_messages_of_one_rank_equal_those_of_all(name: str) -> None:
    for p in (5, 8):
        if not CATALOGUE[name].allows(p):
            continue
        whole, one = CATALOGUE[name].schedule(p), CATALOGUE[name].symmetric(p)
        made = messages(whole)
        assert np.allclose(moved(made), of_rows(whole))
        counts = count(whole)
        far = sum(int((some.src != some.dst).sum()) for some in made)
        assert far == sum(counts.messages)
        assert sum(float(some.added.sum()) for some in made) == pytest.approx(sum(counts.added))
        if one is not None:
            assert np.allclose(moved(messages(one)), of_rows(whole))


PLAIN = Hardware(Link(10e-6, 1e9), Link(1e-6, 4e9), message_share=0.0, combine_bytes_per_s=2e9)
MANY = 64 << 20


def priced(name: str, shape: str, nbytes: int, hardware: Hardware = PLAIN, **more: object):
    where = Network(Hosts.parse(shape), hardware)
    return price(Candidate(name, lambda: messages(CATALOGUE[name].schedule(where.ranks))), where, nbytes, **more)


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


def test_steady_rounds_need_not_be_played() -> None:
    """More than 96 equal rounds take what they take one by one."""
    where, one = Network(Hosts.parse("64x2")), CATALOGUE["all_reduce.ring"].symmetric(128)
    assert one is not None
    sections = messages(one)
    assert max(some.times for some in sections) > 96
    singly = [some._replace(times=1) for some in sections for _ in range(round(some.times))]
    short, whole = (play(some, where, MANY) for some in (sections, singly))
    assert short.ready == pytest.approx(whole.ready, rel=1e-9)
    assert short.busy == pytest.approx(whole.busy, rel=1e-9)


def test_too_large_simulations_are_left_out() -> None:
    said = {one.name: one.why_not for one in candidates("all_reduce", Hosts.parse("256x8"), 1 << 30)}
    assert "its table would have about 4.2e+06 rows" in said["all_reduce.one_shot"]
    assert not said["all_reduce.hierarchical"]


def test_no_price_is_below_the_bound() -> None:
    hosts = Hosts.parse("8x8")
    best = min(price(one, Network(hosts), 1 << 30).seconds for one in candidates("all_reduce", hosts, 1 << 30))
    assert best > 2 * (1 << 30) * 7 / 8 / 1.25e9


@pytest.mark.parametrize(("name", "shape"), [("direct", "8192x8"), ("pairwise", "256x8")])
def test_sample_prices_many_ranks(name: str, shape: str) -> None:
    hosts, nbytes = Hosts.parse(shape), 1 << 30
    one = next(found for found in candidates("all_to_all", hosts, nbytes) if found.algorithm == name)
    assert not one.why_not
    assert sum(len(some.src) for some in one.make()) <= 1.1 * MOST_MESSAGES
    got = price(one, Network(hosts, PLAIN), nbytes)
    assert got.link.startswith("host")
    assert got.seconds == pytest.approx(8 * nbytes / 1e9, rel=0.01), "what 8 ranks send, by one port"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"unknown collective 'all_redcue'. Did you mean all_reduce"):
        list(candidates("all_redcue", Hosts.parse("2x2"), 8))
    with pytest.raises(ArgumentError, match="all_gather: got root 1, expected none"):
        list(candidates("all_gather", Hosts.parse("2x2"), 8, 1))
