"""Counts against what can be worked out by hand, and against each other."""

from __future__ import annotations

import pytest

from unisono.base.errors import ArgumentError
from unisono.schedule import Bounds, Counts, count, lower_bounds
from unisono.schedule.algorithms import CATALOGUE

pytestmark = pytest.mark.quick


def test_ring_all_reduce_of_four() -> None:
    counts = count(CATALOGUE["all_reduce.ring"].schedule(4))
    assert counts == Counts(6, 1, (6,) * 4, (1.5,) * 4, (1.5,) * 4, (0.75,) * 4)
    assert (counts.most_sent, counts.most_received, counts.most_added) == (1.5, 1.5, 0.75)


def test_the_root_of_a_linear_reduce_is_busy() -> None:
    counts = count(CATALOGUE["reduce.linear"].schedule(5, 2))
    assert counts == Counts(1, 4, (1, 1, 0, 1, 1), (1, 1, 0, 1, 1), (0, 0, 4, 0, 0), (0, 0, 4, 0, 0))


def test_what_a_rank_moves_within_itself_is_no_message() -> None:
    one_shot, alone = (count(CATALOGUE["all_reduce.one_shot"].schedule(p)) for p in (3, 1))
    assert one_shot == Counts(1, 2, (2,) * 3, (2,) * 3, (2,) * 3, (2,) * 3)
    assert alone == Counts(0, 0, (0,), (0,), (0,), (0,))


def test_several_rows_to_one_rank_are_one_message() -> None:
    counts = count(CATALOGUE["all_gather.pat"].schedule(8))
    assert (counts.rounds, counts.ports, counts.messages) == (3, 1, (3,) * 8)
    assert count(CATALOGUE["all_gather.two_way_ring"].schedule(8)).ports == 2


def test_what_is_sent_is_received() -> None:
    for algorithm in CATALOGUE.values():
        for p in filter(algorithm.allows, (1, 2, 3, 5, 7, 8)):
            counts = count(algorithm.schedule(p))
            assert sum(counts.sent) == pytest.approx(sum(counts.received))
            assert len(counts.sent) == len(counts.received) == len(counts.added) == len(counts.messages) == p


@pytest.mark.parametrize(
    ("collective", "bounds"),
    [
        ("broadcast", Bounds(3, 1, 0)),
        ("reduce", Bounds(3, 1, 0.8)),
        ("all_gather", Bounds(3, 0.8, 0)),
        ("reduce_scatter", Bounds(3, 0.8, 0.8)),
        ("all_reduce", Bounds(3, 1.6, 0.8)),
        ("all_to_all", Bounds(3, 0.8, 0)),
        ("barrier", Bounds(3, 0, 0)),
    ],
)
def test_lower_bounds_at_five_ranks(collective: str, bounds: Bounds) -> None:
    assert lower_bounds(collective, 5) == bounds
    assert lower_bounds(collective, 1) == Bounds(0, 0, 0)


def test_lower_bounds_of_nothing() -> None:
    with pytest.raises(ArgumentError, match="'gossip' is no collective that has lower bounds; those that have: broad"):
        lower_bounds("gossip", 4)
