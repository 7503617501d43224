"""Networks: every route leads from host to host, messages are those of the rows, and unknown names are refused."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.each import each
from unisono.base.errors import ArgumentError
from unisono.base.link import Link
from unisono.schedule import COPY, DST, SRC, Hosts, N, Schedule, count
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import CORES, spanning
from unisono.schedule.simulate import NETWORKS, Hardware, Messages, messages, network
from unisono.schedule.simulate.table_messages import MOST_MESSAGES

SHAPES = ["4x2", "3x3", "2+4+3", "9x1", "2x3:round_robin", "12x2"]


def walk(net, src: int, dst: int) -> list[str]:
    """The names of the places that a message passes, found by following its links from host to host."""
    route = net.route(np.array([src]), np.array([dst]))[:, 0].tolist()
    links = [tuple(net.link_name(k).split("-")) for k in route[2:] if k]
    single = net.name == "flat"
    at, goal = (f"host{src if single else net.places[src]}", f"host{dst if single else net.places[dst]}")
    passed = [at]
    while links:
        step = next(link for link in links if link[0] == at)
        links.remove(step)
        at = step[1]
        passed.append(at)
    assert at == goal
    return passed


@pytest.mark.parametrize("name", [*NETWORKS, "racks:size=2"])
@given(shape=st.sampled_from(SHAPES), data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_route_leads_from_host_to_host(name: str, shape: str, data: st.DataObject) -> None:
    hosts = Hosts.parse(shape)
    net = network(name, hosts)
    src, dst = (data.draw(st.integers(0, hosts.ranks - 1)) for _ in range(2))
    route = net.route(np.array([src]), np.array([dst]))[:, 0]
    if net.places[src] == net.places[dst]:
        assert route[0] == 1 + hosts.ranks + dst
        assert not route[1:].any()
    else:
        passed = walk(net, src, dst)
        assert len(set(passed)) == len(passed), "no place twice"


@pytest.mark.parametrize(("src", "dst", "links"), [(0, 1, 2), (0, 3, 2), (0, 4, 4), (0, 15, 4)])
def test_messages_between_racks_pass_the_core(src: int, dst: int, links: int) -> None:
    passed = walk(network("racks:size=4", Hosts.parse("16x1")), src, dst)
    assert len(passed) == links + 1
    assert ("core" in passed) == (links == 4)


def test_the_core_is_oversubscribed() -> None:
    net = network("racks:4,oversubscription=8", Hosts.parse("16x1"), Hardware(Link(1e-4, 1e9)))
    rates = {net.link_name(k): net.rates[k] for k in range(1 + 2 * net.ranks, len(net.rates))}
    assert rates["host3-rack0"] == rates["rack0-host3"] == 1e9
    assert rates["rack3-core"] == rates["core-rack3"] == 4 * 1e9 / 8


def test_latency_grows_with_each_switch() -> None:
    net = network("racks:size=2", Hosts.parse("8x2"), Hardware(hop_s=1e-6))
    src, dst = np.array([0, 0, 0, 0]), np.array([0, 1, 2, 4])
    latency = net.latency(src, dst, net.route(src, dst))
    assert latency.tolist() == pytest.approx([0, 1e-6, 100e-6, 102e-6])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mesh", "'mesh' is no network; there are: flat, two-levels, racks"),
        ("flat:k=4", "'k=4' is not known here; flat takes nothing"),
        ("racks:size=x", "'x' is no value of size; racks takes size, oversubscription"),
        ("racks:size=0", "size=0: expected a number of hosts, from 1 up"),
        ("racks:oversubscription=0", "oversubscription must be above 0"),
    ],
)
def test_unknown_networks_are_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        network(text, Hosts.parse("8x2"))


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


@pytest.mark.parametrize("shape", ["3x2", "2+3+1"])
@each("collective", CORES)
def test_messages_of_parts_equal_the_whole(collective: str, shape: str) -> None:
    call = spanning(collective, Hosts.parse(shape))
    assert np.allclose(moved(messages(call)), of_rows(call.schedule()))


@pytest.mark.parametrize("name", ["all_gather.direct", "all_to_all.pairwise"])
def test_sample_stands_for_many_ranks(name: str) -> None:
    p = 4096
    one = CATALOGUE[name].symmetric(p)
    assert one is not None
    sections = messages(one)
    assert sum(len(some.src) for some in sections) <= 1.1 * MOST_MESSAGES
    sent = sum(float(some.share[some.src != some.dst].sum()) * some.weight * some.times for some in sections)
    assert sent / p == pytest.approx((p - 1) / p, rel=0.01)


def test_a_round_has_its_messages_by_sender() -> None:
    (some,) = messages(CATALOGUE["all_reduce.one_shot"].schedule(3))
    assert some.starts.tolist() == [0, 9]
    assert some.src.tolist() == sorted(some.src.tolist())
    assert (some.added > 0).sum() == (CATALOGUE["all_reduce.one_shot"].schedule(3).rows[:, -1] != COPY).sum()
    assert np.allclose(some.share, 1)
