"""Finding algorithms, ours and the user's, what they refuse, and the rounds and bytes of their docstrings."""

from itertools import count as count_up
from math import ceil

import numpy as np
import pytest

from tests.support.each import each
from tests.support.schedule_oracles import is_right
from unisono.base.errors import ArgumentError
from unisono.schedule import ADD, COPY, Y, count, lower_bounds, prove, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm, algorithm, composed, find, lines, table
from unisono.schedule.algorithms.catalogue import RADIX, SEGMENTS
from unisono.schedule.algorithms.hierarchical import island

pytestmark = pytest.mark.quick


def ring(r, p):
    for s in range(p - 1):
        yield send(r, (r + 1) % p, (r - s) % p)


def test_naive_algorithm_comes_first() -> None:
    first: dict[str, str] = {}
    for full, a in CATALOGUE.items():
        assert full == a.full_name
        first.setdefault(a.collective, a.name)
    assert {*first.values()} <= {"linear", "direct", "naive"}


def test_find_by_name() -> None:
    a = CATALOGUE["all_reduce.ring"]
    assert find("all_reduce", "ring") is find("all_reduce", "all_reduce.ring") is find("all_reduce", a) is a
    assert a.schedule(5).name == "all_reduce.ring"


@each(
    "collective, name, message",
    [
        ("all_reduce", "rign", r"unknown algorithm 'rign' for all_reduce. Did you mean 'ring'\? Use one of naive, "),
        ("scan", "qqq", r"unknown algorithm 'qqq' for scan. Use one of linear, hillis_steele, direct"),
        ("all_reduce", "all_gather.ring", "is an algorithm for all_gather, expected one for all_reduce"),
        ("all_redcue", "ring", "unknown collective 'all_redcue'. Did you mean all_reduce"),
        ("scan", 3, "algorithm: got 3"),
    ],
)
def test_find_says_what_there_is(collective: str, name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find(collective, name)


def test_schedule_is_an_algorithm_for_its_ranks() -> None:
    schedule = trace(ring, 4, 4, "all_gather")
    found = find("all_gather", schedule)
    assert np.array_equal(found.schedule(4).rows, schedule.rows)
    assert schedule.rows.flags.writeable
    with pytest.raises(ArgumentError, match="a table for 4 ranks and root 0, expected one for 5 ranks"):
        found.schedule(5)
    with pytest.raises(ArgumentError, match="for all_gather, expected one for all_reduce"):
        find("all_reduce", schedule)


def test_plain_generator_is_an_algorithm() -> None:
    found = find("all_gather", ring)
    assert (found.full_name, found.requires) == ("all_gather.ring", ())
    assert found is find("all_gather", ring)
    for p in (1, 2, 3, 5, 7, 8):
        assert np.array_equal(found.schedule(p).rows, CATALOGUE["all_gather.ring"].schedule(p).rows)
        prove(found.schedule(p))


def test_plain_generator_with_a_root() -> None:
    def star(r, p, root):
        yield send(root, r[r != root], 0, n=p)

    for root in range(3):
        schedule = find("broadcast", star).schedule(3, root)
        assert (schedule.root, schedule.chunks) == (root, 3)
        prove(schedule)
        assert is_right(schedule, 7)
    for collective, own, said in ("all_gather", star, r"star\(r, p\)"), ("broadcast", ring, r"ring\(r, p, root\)"):
        with pytest.raises(ArgumentError, match=rf"{collective}.{own.__name__} must be a generator {said}"):
            find(collective, own)


def test_all_to_all_ends_in_the_second_buffer() -> None:
    def everyone(r, p):
        yield [send(r, q, q, to=r, dbuf=Y) for q in range(p)]

    schedule = find("all_to_all", everyone).schedule(3)
    assert schedule.result == Y
    assert is_right(schedule, 2)


@pytest.mark.parametrize("result", [Y, "Y"])
def test_decorator_sets_chunks_and_result(result) -> None:
    @algorithm("all_reduce", name="all_at_once", chunks=1, result=result, requires=("even",))
    def mine(r, p):
        yield [send(q, r, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]

    found = find("all_reduce", mine)
    assert (found.full_name, found.requires) == ("all_reduce.all_at_once", ("even",))
    assert found.schedule(4).chunks == 1
    prove(found.schedule(4))


@each(
    "words, message",
    [
        ({"result": "Z"}, "got result buffer 'Z', expected X or Y"),
        ({"requires": ("prime",)}, "unknown restriction 'prime'. Use commutative, even, power_of"),
    ],
)
def test_decorator_refuses_unknown_values(words: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        algorithm("all_gather", **words)(ring)


def test_decorated_tables_of_the_user() -> None:
    """Of any number of chunks, and composed of others."""

    @algorithm("all_gather", chunks=lambda p: 2 * p)
    def wide(r, p):
        yield send(r, (r + 1) % p, 2 * r, n=2)

    @composed("all_gather", name="twice")
    def mine(p):
        return table(ring, p, collective="all_gather")

    assert table(wide, 3).chunks == 6
    assert find("all_gather", mine).schedule(3).name == "all_gather.twice"


@pytest.mark.parametrize(
    ("name", "bad", "restriction"),
    [("all_gather.swing", 6, "power_of_two"), ("all_gather.neighbour_exchange", 7, "even"),
     ("reduce.bine", 12, "power_of_two")],
)  # fmt: skip
def test_restriction_names_alternatives(name: str, bad: int, restriction: str) -> None:
    a = CATALOGUE[name]
    assert not a.allows(bad)
    said = f"got {bad} ranks, expected .*{restriction}.* Use one of .*circulant"
    with pytest.raises(ArgumentError, match=said) as error:
        a.schedule(bad)
    for other in str(error.value).rpartition("Use one of ")[2].rstrip(".").split(", "):
        prove(find(a.collective, other).schedule(bad))


def test_ranks_and_roots_must_exist() -> None:
    with pytest.raises(ArgumentError, match="got 0 ranks, expected at least 1"):
        CATALOGUE["all_gather.ring"].schedule(0)
    with pytest.raises(ArgumentError, match="got root 4, expected 0 to 3"):
        CATALOGUE["broadcast.linear"].schedule(4, 4)


def test_tables_are_cached_read_only() -> None:
    a = CATALOGUE["all_reduce.ring"]
    assert a.schedule(6) is a.schedule(6, root=5)
    with pytest.raises(ValueError, match="read-only"):
        a.schedule(6).rows[0, 0] = 1
    b = CATALOGUE["broadcast.linear"]
    assert b.schedule(6, 1).root == 1


ALL = each("algorithm", CATALOGUE.values())
RANKS = [*range(2, 34), 64, 100, 128]


def evaluate(formula: str, ranks: int) -> float:
    """The value of a formula, without its `at most`, for a number of ranks and a vector of 1 byte."""
    known = {
        "m": 1.0, "p": ranks, "F": (ranks - 1) / ranks, "lg": digits(ranks, 2), "floor_lg": ranks.bit_length() - 1,
        "pow2": 1 << ranks.bit_length() - 1, "below": 1 << (ranks - 1).bit_length() >> 1,
        "folded": int(ranks & ranks - 1 > 0), "ones": sum(bin(j).count("1") for j in range(ranks)), "n": SEGMENTS,
        "k": RADIX, "lgk": digits(ranks, RADIX), "l": island(ranks), "ceil": ceil,
        "rounds_for": lambda x: digits(ceil(x), 2),
    }  # fmt: skip
    return float(eval(formula.removeprefix("at most "), known))  # noqa: S307  our own formulas


def digits(x: int, base: int) -> int:
    """The logarithm of x rounded up."""
    return next(k for k in count_up() if base**k >= x)


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
def test_nothing_beats_the_lower_bounds(algorithm: Algorithm) -> None:
    for p in filter(algorithm.allows, RANKS):
        counts, bounds = count(algorithm.schedule(p)), lower_bounds(algorithm.collective, p)
        assert counts.most_sent >= bounds.sent - 1e-9
        assert counts.most_received >= bounds.received - 1e-9
        assert counts.most_added >= bounds.added - 1e-9
        if counts.ports == 1:
            assert counts.rounds >= bounds.rounds


@each("rest", ["", "rounds: 1\nbytes: m\nwins: never", "bytes: 1\nrounds: 1\nwins: w\nsource: s"])
def test_docstring_with_other_lines_is_refused(rest: str) -> None:
    with pytest.raises(ArgumentError, match="needs the lines idea, rounds, bytes, wins, source"):
        lines(f"Idea.\n{rest}")
