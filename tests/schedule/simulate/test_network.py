"""The network: routes lead from rank to rank, and messages are those of the rows."""

from itertools import product

import numpy as np
import pytest

from tests.support.each import each
from unisono.base.link import Link
from unisono.schedule import COPY, DST, SRC, Hosts, N, Schedule, count
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.simulate import Hardware, Messages, Network, messages
from unisono.schedule.simulate.table_messages import MOST_MESSAGES

SHAPES = ["4x2", "3x3", "2+4+3", "9x1", "2x3:round_robin", "12x2"]


@each("shape", SHAPES)
def test_route_leads_from_rank_to_rank(shape: str) -> None:
    net = Network(Hosts.parse(shape))
    for src, dst in product(range(net.ranks), repeat=2):
        route = [net.link_name(k) for k in net.route(np.array([src]), np.array([dst]))[:, 0] if k]
        a, b = net.hosts.host_of(src), net.hosts.host_of(dst)
        between = [f"rank{src} out", f"host{a} out", f"host{b} in"] if a != b else []
        assert sorted(route) == sorted([*between, f"rank{dst} in"])


def test_links_have_the_rates_of_their_hardware() -> None:
    net = Network(Hosts.parse("8x2"), Hardware(Link(1e-4, 1e9), Link(1e-6, 4e9)))
    rates = {net.link_name(k): net.rates[k] for k in range(1, len(net.rates))}
    assert len(rates) == 2 * (16 + 8)
    assert rates["rank15 out"] == rates["rank0 in"] == 4e9
    assert rates["host7 out"] == rates["host0 in"] == 1e9


def test_latency_is_of_the_link() -> None:
    src, dst = np.array([0, 0, 0]), np.array([0, 1, 2])
    assert Network(Hosts.parse("8x2")).latency(src, dst).tolist() == pytest.approx([0, 1e-6, 100e-6])


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


@each("name", CATALOGUE)
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


@pytest.mark.parametrize("name", ["all_gather.direct", "all_to_all.pairwise"])
def test_sample_stands_for_many_ranks(name: str) -> None:
    p = 4096
    one = CATALOGUE[name].symmetric(p)
    assert one is not None
    sections = messages(one)
    assert sum(len(some.src) for some in sections) <= 1.1 * MOST_MESSAGES
    sent = sum(float(some.share[some.src != some.dst].sum()) * some.weight * some.times for some in sections)
    assert sent / p == pytest.approx((p - 1) / p, rel=0.01)


def test_round_has_its_messages_by_sender() -> None:
    (some,) = messages(CATALOGUE["all_reduce.one_shot"].schedule(3))
    assert some.starts.tolist() == [0, 9]
    assert some.src.tolist() == sorted(some.src.tolist())
    assert (some.added > 0).sum() == (CATALOGUE["all_reduce.one_shot"].schedule(3).rows[:, -1] != COPY).sum()
    assert np.allclose(some.share, 1)
