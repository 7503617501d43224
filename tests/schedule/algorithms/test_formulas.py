"""What the docstrings say of rounds and bytes is what the tables have."""

from __future__ import annotations

import pytest

from tests.support.each import each
from unisono.base.errors import ArgumentError
from unisono.schedule import count, lower_bounds
from unisono.schedule.algorithms import CATALOGUE, Algorithm, evaluate, lines

pytestmark = pytest.mark.quick

ALL = each("algorithm", CATALOGUE.values())
RANKS = [*range(2, 34), 64, 100, 128]


def check(formula: str, counted: dict[int, float]) -> None:
    stated = {p: evaluate(formula, p) for p in counted}
    if formula.startswith("at most "):
        assert all(counted[p] <= stated[p] + 1e-9 for p in counted)
        assert any(counted[p] >= stated[p] - 1e-9 for p in counted), "the bound is never reached"
    else:
        assert counted == pytest.approx(stated, rel=1e-12)


@ALL
def test_formulas_hold_for_the_counts(algorithm: Algorithm) -> None:
    text = lines(algorithm.doc)
    counts = {p: count(algorithm.schedule(p)) for p in RANKS if algorithm.allows(p)}
    assert len(counts) >= 6
    check(text["rounds"], {p: c.rounds for p, c in counts.items()})
    sent, _, received = text["bytes"].partition("; received: ")
    check(sent, {p: c.most_sent for p, c in counts.items()})
    if received:
        check(received, {p: c.most_received for p, c in counts.items()})
    else:
        check("at most " + sent.removeprefix("at most "), {p: c.most_received for p, c in counts.items()})


@ALL
def test_a_docstring_has_five_lines(algorithm: Algorithm) -> None:
    text = [line for line in algorithm.doc.splitlines() if line.strip()]
    assert len(text) == 5
    assert all(lines(algorithm.doc).values())
    assert text[0].endswith(".")


def test_no_two_algorithms_have_the_same_idea() -> None:
    ideas = [lines(a.doc)["idea"] for a in CATALOGUE.values()]
    assert len(set(ideas)) == len(ideas)


@ALL
def test_nothing_beats_the_lower_bounds(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, RANKS):
        counts, bounds = count(algorithm.schedule(p)), lower_bounds(algorithm.collective, p)
        assert max(counts.most_sent, counts.most_received) >= bounds.sent - 1e-9
        assert counts.most_added >= bounds.added - 1e-9
        if counts.ports == 1:
            assert counts.rounds >= bounds.rounds


@pytest.mark.parametrize(
    "name", ["all_reduce.circulant", "all_gather.circulant", "reduce_scatter.circulant", "scatter.binomial"]
)
def test_the_optimal_ones_reach_the_lower_bound_in_bytes(name: str) -> None:
    algorithm = CATALOGUE[name]
    for p in RANKS:
        bound = lower_bounds(algorithm.collective, p).sent
        assert count(algorithm.schedule(p)).most_sent == pytest.approx(bound)


@pytest.mark.parametrize("formula", ["__import__('os')", "m.real", "q + 1", "m if p else 0", "m +", "'m'", "m < p"])
def test_a_formula_is_arithmetic_only(formula: str) -> None:
    with pytest.raises(ArgumentError, match="no arithmetic"):
        evaluate(formula, 8)


def test_formulas_know_their_names() -> None:
    assert evaluate("2 * m * F", 8, m=1024) == 1792
    assert evaluate("lg + 10 * floor_lg + 100 * pow2 + 1000 * below + 10000 * folded", 6) == 3 + 20 + 400 + 4000 + 10000
    assert evaluate("-ones + ceil(m / 3) ** 2 + max(p, 2) - p // 4", 8, m=10) == -12 + 16 + 8 - 2


@pytest.mark.parametrize(
    "doc", ["Idea.", "Idea.\nrounds: 1\nbytes: m\nwins: never", "Idea.\nbytes: 1\nrounds: 1\nwins: w\nsource: s"]
)
def test_a_docstring_with_other_lines_is_refused(doc: str) -> None:
    with pytest.raises(ArgumentError, match="has the lines idea, rounds, bytes, wins, source"):
        lines(doc)
