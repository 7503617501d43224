"""Maps of ranks to hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.each import each
from unisono.base.errors import ArgumentError
from unisono.schedule import Hosts

pytestmark = pytest.mark.quick


PARSED = [
    ("2x2", ((0, 1), (2, 3)), "2x2"),
    ("3+1", ((0, 1, 2), (3,)), "3+1"),
    ("4", ((0, 1, 2, 3),), "4"),
    ("2x2:round_robin", ((0, 2), (1, 3)), "2x2 (0 2 | 1 3)"),
    ("1+3:round_robin", ((0,), (1, 2, 3)), "1+3"),
    ("3+1:round_robin", ((0, 2, 3), (1,)), "3+1 (0 2 3 | 1)"),
]


@each("text, members, shown", PARSED)
def test_hosts_are_parsed(text, members, shown):
    assert (Hosts.parse(text).members, Hosts.parse(text).text) == (members, shown)


@each("text", ["", "x", "0x2", "2x0", "3+0", "2x2x2", "2x3+1", "2x2:random", "-1", "9" * 5000])
def test_invalid_hosts_are_refused(text):
    with pytest.raises(ArgumentError, match="expected text such as 4x8"):
        Hosts.parse(text)


@each("text", ["1000000x1000000", "65536+1", "2x999999999999999:round_robin"])
def test_too_many_ranks(text):
    with pytest.raises(ArgumentError, match="expected at most 65,536"):
        Hosts.parse(text)


@each("members", [(), ((),), ((1, 0),), ((0, 2),), ((1,), (0,)), ((0,), (0,)), ((0,), ())])
def test_invalid_maps_are_refused(members):
    with pytest.raises(ArgumentError, match="each of the ranks"):
        Hosts(members)


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
