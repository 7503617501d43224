"""All algorithms: how they are found, what they refuse, their proofs, and the rounds and bytes of their docstrings."""

from collections.abc import Callable
from itertools import count as count_up
from math import ceil

import pytest

from tests.schedule.test_proof import verdict
from tests.support.schedule_oracles import is_right
from unisono.base.errors import ArgumentError
from unisono.schedule import ADD, COPY, DST, SRC, X, Y, count, prove, send, trace
from unisono.schedule.algorithms import CATALOGUE, Algorithm, algorithm, composed, find, hierarchical, lines, table
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
    assert find("all_gather", ring) is find("all_gather", ring)


def star(r, p, root):
    yield send(root, r[r != root], 0, n=p)


def everyone(r, p):
    yield [send(r, q, q, to=r, dbuf=Y) for q in range(p)]


@algorithm("all_reduce", name="all_at_once", chunks=1, result="Y", requires=("even",))
def summed(r, p):
    yield [send(q, r, 0, dbuf=Y, op=ADD if q else COPY) for q in range(p)]


@algorithm("all_gather", chunks=lambda p: 2 * p, result=X)
def wide(r, p):
    yield [send(r, (r + k) % p, 2 * r, n=2) for k in range(1, p)]


@composed("all_gather", name="twice")
def of_a_ring(p):
    return table(ring, p, collective="all_gather")


OWN = [
    ("all_gather", ring, "ring", 4, X),
    ("all_gather", trace(ring, 4, 4, "all_gather"), "ring", 4, X),
    ("broadcast", star, "star", 4, X),
    ("all_to_all", everyone, "everyone", 4, Y),
    ("all_reduce", summed, "all_at_once", 1, Y),
    ("all_gather", wide, "wide", 8, X),
    ("all_gather", of_a_ring, "twice", 4, X),
]


@pytest.mark.parametrize(("collective", "own", "name", "chunks", "result"), OWN)
def test_generator_or_table_is_an_algorithm(collective: str, own, name: str, chunks: int, result: int) -> None:
    found = find(collective, own)
    assert (found.full_name, found.requires) == (f"{collective}.{name}", ("even",) * (own is summed))
    schedule = found.schedule(4, 3)
    assert (schedule.chunks, schedule.result, schedule.root) == (chunks, result, 3 * (own is star))
    prove(schedule)


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


LINES = "needs the lines idea, rounds, bytes, wins, source"
REFUSED = [
    (lambda: find("all_reduce", "rign"), r"unknown .* 'rign' for all_reduce. Did you mean 'ring'\? Use one of naive, "),
    (lambda: find("scan", "qqq"), r"unknown algorithm 'qqq' for scan. Use one of linear, hillis_steele, direct"),
    (lambda: find("all_reduce", "all_gather.ring"), "is an algorithm for all_gather, expected one for all_reduce"),
    (lambda: find("all_redcue", "ring"), "unknown collective 'all_redcue'. Did you mean all_reduce"),
    (lambda: find("scan", 3), "algorithm: got 3"),
    (lambda: find("all_reduce", trace(ring, 4, 4, "all_gather")), "for all_gather, expected one for all_reduce"),
    (lambda: find("all_gather", trace(ring, 4, 4, "all_gather")).schedule(5), "for 4 ranks and root 0, .* for 5 ranks"),
    (lambda: find("all_gather", star), r"all_gather.star must be a generator star\(r, p\)"),
    (lambda: find("broadcast", ring), r"broadcast.ring must be a generator ring\(r, p, root\)"),
    (lambda: algorithm("all_gather", result="Z")(ring), "got result buffer 'Z', expected X or Y"),
    (
        lambda: algorithm("all_gather", requires=("prime",))(ring),
        "unknown restriction 'prime'. Use commutative, even, power_of",
    ),
    (lambda: CATALOGUE["all_gather.ring"].schedule(0), "got 0 ranks, expected at least 1"),
    (lambda: CATALOGUE["broadcast.linear"].schedule(4, 4), "got root 4, expected 0 to 3"),
    (lambda: lines("Idea."), LINES),
    (lambda: lines("Idea.\nrounds: 1\nbytes: m\nwins: never"), LINES),
    (lambda: lines("Idea.\nbytes: 1\nrounds: 1\nwins: w\nsource: s"), LINES),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_mistakes_are_refused_with_a_reason(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_tables_are_cached_read_only() -> None:
    a = CATALOGUE["all_reduce.ring"]
    assert a.schedule(6) is a.schedule(6, root=5)
    with pytest.raises(ValueError, match="read-only"):
        a.schedule(6).rows[0, 0] = 1
    own = trace(ring, 4, 4, "all_gather")
    find("all_gather", own).schedule(4)
    assert own.rows.flags.writeable


ALL = pytest.mark.parametrize("algorithm", CATALOGUE.values())
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


def tables(algorithm: Algorithm, sizes: range):
    for p in sizes:
        if algorithm.allows(p):
            for root in sorted({0, p // 3, p - 1}):
                yield algorithm.schedule(p, root)


@ALL
def test_exact_proof(algorithm: Algorithm) -> None:
    proved = [prove(schedule) for schedule in tables(algorithm, range(1, 18))]
    assert {proof.ranks for proof in proved} == {p for p in range(1, 18) if algorithm.allows(p)}
    assert {proof.same_bits for proof in proved} == {True if algorithm.collective == "all_reduce" else None}


@ALL
def test_gives_the_right_result_on_data(algorithm: Algorithm) -> None:
    for schedule in tables(algorithm, range(1, 10)):
        for n in (0, 1, 5, 37):
            assert is_right(schedule, n), (schedule.ranks, schedule.root, n)


@ALL
def test_one_rank_moves_nothing_to_others(algorithm: Algorithm) -> None:
    schedule = algorithm.schedule(1)
    assert (schedule.rows[:, SRC] == schedule.rows[:, DST]).all()
    # Where input and output are two buffers it copies; an exscan leaves rank 0 nothing.
    assert bool(len(schedule.rows)) == (schedule.result != X and algorithm.collective != "exscan")


@ALL
def test_commutative_is_required_if_unordered(algorithm: Algorithm) -> None:
    cases = [(p, root) for p in range(2, 10) if algorithm.allows(p) for root in range(p)]
    kept = all(verdict(algorithm.schedule(*case), ordered=True) == "accepted" for case in cases)
    assert kept == ("commutative" not in algorithm.requires)


@pytest.mark.parametrize(("islands", "local"), [(1, 1), (1, 6), (6, 1), (2, 3), (3, 2), (4, 4), (5, 3)])
def test_hierarchical_takes_islands_of_any_size(islands: int, local: int) -> None:
    schedule = hierarchical.all_reduce(islands * local, local)
    prove(schedule)
    assert is_right(schedule, 37)
