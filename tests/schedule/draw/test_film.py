"""A film shows what a table does: it ends with what the contract says, and shows where a wrong table goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.each import each
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import ADD, Schedule, contract, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm
from unisono.schedule.draw.film import film
from unisono.schedule.draw.words import costs, share, spans

RANKS = (1, 2, 3, 5, 7, 8)


def tables(algorithm: Algorithm) -> list[Schedule]:
    return [algorithm.schedule(p, root) for p in RANKS if algorithm.allows(p) for root in {0, p - 1}]


@each("algorithm", CATALOGUE.values())
def test_a_film_ends_with_what_the_contract_promises(algorithm: Algorithm) -> None:
    for schedule in tables(algorithm):
        story = film(schedule)
        assert len(story.frames) == schedule.rounds
        end = story.states()[-1]
        for slot, (chunk, ranks) in contract(schedule).after.items():
            assert end[slot] == tuple((r, chunk) for r in range(schedule.ranks) if ranks >> r & 1)


def test_what_is_added_twice_is_there_twice() -> None:
    def twice(r, p):
        yield send(0, 1, 0, op=ADD)
        yield send(0, 1, 0, op=ADD)

    story = film(trace(twice, 2, 1, "all_reduce"))
    assert story.states()[-1][1, 0, 0] == ((0, 0), (0, 0), (1, 0))


def test_reads_see_what_was_there_before_the_round() -> None:
    def swap(r, p):
        yield send(r, (r + 1) % p, 0)

    story = film(trace(swap, 3, 1, "all_reduce"))
    assert [story.states()[-1][rank, 0, 0] for rank in range(3)] == [((2, 0),), ((0, 0),), ((1, 0),)]


def test_what_was_never_written_carries_nothing() -> None:
    def empty(r, p):
        yield send(1, 0, 0)

    story = film(trace(empty, 2, 1, "broadcast"))
    assert story.frames[0].moves[0].carries == ()
    assert story.states()[-1][0, 0, 0] == ()


def test_tables_that_mean_nothing_are_refused() -> None:
    def outside(r, p):
        yield send(0, p, 0)

    with pytest.raises(AlgorithmError, match="there are only the ranks 0 to 1"):
        film(trace(outside, 2, 1, "all_reduce"))
    with pytest.raises(ArgumentError, match="'all_sorts' is no collective"):
        film(replace(CATALOGUE["all_reduce.ring"].schedule(2), collective="all_sorts"))


def test_words() -> None:
    assert spans([0, 1, 2, 5]) == "0..2,5"
    assert spans([0, 1, 4], "+") == "0+1+4"
    assert spans([]) == ""
    assert [share(x, 4) for x in (0.0, 0.75, 1.5, 2.0, 0.1)] == ["0", "3/4 m", "6/4 m", "2 m", "0.1 m"]
    assert costs(CATALOGUE["all_reduce.ring"].schedule(8)) == "a rank sends ≤ 14/8 m, receives ≤ 14/8 m, adds ≤ 7/8 m"
    assert costs(CATALOGUE["barrier.dissemination"].schedule(8)) == "no data moves"
