"""Maps of ranks to hosts; counts and costs by level against what can be worked out by hand, and the bounds."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.base.errors import ArgumentError
from unisono.schedule import Bounds, Counts, Hosts, Levels, Schedule, count, levels, lower_bounds
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.algorithms.over_hosts import spanning

pytestmark = pytest.mark.quick

PARSED = [
    ("2x2", ((0, 1), (2, 3)), "2x2"),
    ("3+1", ((0, 1, 2), (3,)), "3+1"),
    ("4", ((0, 1, 2, 3),), "4"),
    ("2x2:round_robin", ((0, 2), (1, 3)), "2x2 (0 2 | 1 3)"),
    ("1+3:round_robin", ((0,), (1, 2, 3)), "1+3"),
    ("3+1:round_robin", ((0, 2, 3), (1,)), "3+1 (0 2 3 | 1)"),
]


@pytest.mark.parametrize(("text", "members", "shown"), PARSED)
def test_hosts_are_parsed(text, members, shown):
    assert (Hosts.parse(text).members, Hosts.parse(text).text) == (members, shown)


TEXTS = "", "x", "0x2", "2x0", "3+0", "2x2x2", "2x3+1", "2x2:random", "-1", "9" * 5000
MANY = "1000000x1000000", "65536+1", "2x999999999999999:round_robin"
UNTIDY = (), ((),), ((1, 0),), ((0, 2),), ((1,), (0,)), ((0,), (0,)), ((0,), ())
REFUSED = [
    (Hosts.parse, TEXTS, "expected text such as 4x8"),
    (Hosts.parse, MANY, "expected at most 65,536"),
    (Hosts, UNTIDY, "each of the ranks"),
    (lambda name: lower_bounds(name, 4), ["gossip"], r"'gossip' has no lower bounds. Use one of broad"),
    (levels, [CATALOGUE["all_reduce.ring"].schedule(4)], r"all_reduce\.ring: has no hosts"),
]


@pytest.mark.parametrize(("make", "values", "message"), REFUSED)
def test_invalid_arguments_are_refused(make, values, message):
    for value in values:
        with pytest.raises(ArgumentError, match=message):
            make(value)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_places_and_restriction(names):
    hosts = Hosts.of(names)
    assert hosts.ranks == len(names)
    for rank, name in enumerate(names):
        assert rank in hosts.beside(rank)
        assert hosts.members[hosts.host_of(rank)][hosts.seat(rank)] == rank
        assert {names[other] for other in hosts.beside(rank)} == {name}
    some = range(0, len(names), 2)
    fewer = hosts.restrict(some)
    for place, rank in enumerate(some):
        beside = {names[some[other]] for other in fewer.beside(place)}
        assert beside == {names[rank]}


COUNTED = [
    ("all_reduce.ring", 4, Counts(6, 1, (6,) * 4, (1.5,) * 4, (1.5,) * 4, (0.75,) * 4)),
    ("reduce.linear", 5, Counts(1, 4, (1, 1, 0, 1, 1), (1, 1, 0, 1, 1), (0, 0, 4, 0, 0), (0, 0, 4, 0, 0))),
    ("all_reduce.one_shot", 3, Counts(1, 2, (2,) * 3, (2,) * 3, (2,) * 3, (2,) * 3)),  # local moves are no messages
    ("all_reduce.one_shot", 1, Counts(0, 0, (0,), (0,), (0,), (0,))),
]


@pytest.mark.parametrize(("name", "ranks", "counts"), COUNTED)
def test_counts_by_hand(name: str, ranks: int, counts: Counts) -> None:
    found = count(CATALOGUE[name].schedule(ranks, ranks // 2))
    assert found == counts
    assert (found.most_sent, found.most_received, found.most_added) == tuple(map(max, counts[3:]))


def test_several_rows_to_one_rank_are_one_message() -> None:
    counts = count(CATALOGUE["all_gather.pat"].schedule(8))
    assert (counts.rounds, counts.ports, counts.messages) == (3, 1, (3,) * 8)
    assert count(CATALOGUE["all_gather.two_way_ring"].schedule(8)).ports == 2


@pytest.mark.parametrize(
    ("collective", "bounds"),
    [
        ("broadcast", Bounds(3, 1, 1, 0)),
        ("reduce", Bounds(3, 1, 1, 0.8)),
        ("scatter", Bounds(3, 0.8, 0.2, 0)),
        ("gather", Bounds(3, 0.2, 0.8, 0)),
        ("all_gather", Bounds(3, 0.8, 0.8, 0)),
        ("reduce_scatter", Bounds(3, 0.8, 0.8, 0.8)),
        ("all_reduce", Bounds(3, 1.6, 1.6, 0.8)),
        ("all_to_all", Bounds(3, 0.8, 0.8, 0)),
        ("barrier", Bounds(3, 0, 0, 0)),
        ("scan", Bounds(3, 1, 1, 0.8)),
        ("exscan", Bounds(3, 1, 1, 0.6)),
    ],
)
def test_lower_bounds_at_five_ranks(collective: str, bounds: Bounds) -> None:
    assert lower_bounds(collective, 5) == lower_bounds(collective, Hosts.parse("5x1")) == bounds
    assert lower_bounds(collective, 1) == Bounds(0, 0, 0, 0)


MAPS = ["2x1", "2x2", "2x2:round_robin", "4x1", "3+1", "1+3", "4+2+3", "2+3+4:round_robin", "3x3", "5x2", "4"]


def busiest(table: Schedule) -> tuple[float, float]:
    found = levels(table)
    return max(found.leaves), max(found.enters)


def test_ring_crosses_between_hosts() -> None:
    ring = CATALOGUE["all_reduce.ring"].schedule(4)
    assert levels(ring.replace(hosts=Hosts.parse("2x2"))) == Levels(6, 6, (1.5, 1.5), (1.5, 1.5))
    assert levels(ring.replace(hosts=Hosts.parse("2x2:round_robin"))) == Levels(0, 6, (3.0, 3.0), (3.0, 3.0))
    assert levels(ring.replace(hosts=Hosts.one(4))) == Levels(6, 0, (0.0,), (0.0,))


@pytest.mark.parametrize("text", MAPS)
def test_one_rank_counts_for_all_by_level(text: str) -> None:
    hosts = Hosts.parse(text)
    for algorithm in CATALOGUE.values():
        one = algorithm.symmetric(hosts.ranks)
        if one is not None:
            of_one, of_all = (levels(table.replace(hosts=hosts)) for table in (one, algorithm.schedule(hosts.ranks)))
            assert of_one == Levels(*of_all[:2], *map(pytest.approx, of_all[2:])), algorithm.full_name


BY_HAND = [
    ("all_reduce", 0, Bounds(1, 1.0, 1.0, 0.75)),
    ("all_gather", 0, Bounds(1, 0.75, 0.75, 0)),
    ("scatter", 3, Bounds(1, 0.75, 0.75, 0)),
    ("scatter", 0, Bounds(1, 0.25, 0.25, 0)),
    ("all_to_all", 0, Bounds(1, 0.75, 0.75, 0)),
]


@pytest.mark.parametrize(("collective", "root", "bounds"), BY_HAND)
def test_bounds_of_hosts_by_hand(collective: str, root: int, bounds: Bounds) -> None:
    assert lower_bounds(collective, Hosts.parse("3+1"), root) == bounds
    assert lower_bounds("all_reduce", Hosts.parse("4x8")).sent == 1.5
    assert lower_bounds("all_gather", Hosts.parse("4+2+3")) == Bounds(2, 6 / 9, 7 / 9, 0), "the mean, not the most"
    assert lower_bounds("broadcast", Hosts.one(3)) == Bounds(0, 0.0, 0.0, 0)


@pytest.mark.parametrize("text", MAPS)
def test_host_traffic_meets_the_bounds(text: str) -> None:
    hosts = Hosts.parse(text)
    alike = len({len(host) for host in hosts.members}) == 1
    for rails in range(1, hosts.rails + 1):
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            bounds = lower_bounds(collective, hosts)
            leaves, enters = busiest(spanning(collective, hosts, rails=rails))
            if alike or collective != "reduce_scatter":
                assert enters == pytest.approx(bounds.received)
            if alike or collective != "all_gather":
                assert leaves == pytest.approx(bounds.sent)
        for root, collective in product(range(hosts.ranks), ("scatter", "gather", "broadcast", "reduce")):
            bounds, chain = lower_bounds(collective, hosts, root), collective in ("broadcast", "reduce")
            more = {"rails": rails, "core": "chain"} if chain else {}
            assert busiest(spanning(collective, hosts, root, **more)) == pytest.approx((bounds.sent, bounds.received))
