"""Proofs of large tables: by one chunk for all or a sample, by sums for sets. They agree with proofs of all chunks."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from tests.schedule.test_proof import mutants, verdict
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import Counts, Symmetric, count
from unisono.schedule.algorithms import CATALOGUE, all_gather, all_reduce, all_to_all, table
from unisono.schedule.combine import on, once, pipeline, seq, transpose
from unisono.schedule.proof import prove, sample
from unisono.schedule.table import SCHUNK, N, Schedule, Y, expand, send, spread, trace

NAMES = "direct", "ring", "two_way_ring", "bruck", "circulant", "pat"
SYMMETRIC = [getattr(all_gather, name) for name in NAMES]
LARGE = 65536


def symmetric_tables(p: int) -> Iterator[Schedule]:
    """Tables in which all ranks do the same, as the rows of rank 0."""
    for algorithm in SYMMETRIC:
        one = trace(algorithm, Symmetric(p), p, "all_gather")
        yield from (one, transpose(one), all_reduce.there_and_back(one))
    for algorithm in (all_to_all.direct, all_to_all.pairwise):
        yield trace(algorithm, Symmetric(p), p, "all_to_all", result=Y)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 7, 8, 16, 17])
def test_one_rank_speaks_for_all(p: int) -> None:
    for one in symmetric_tables(p):
        whole = spread(one)
        for chunk in range(p):
            assert sorted(expand(one, (chunk,)).tolist()) == sorted(expand(whole, (chunk,)).tolist())
        assert prove(one) == prove(whole)._replace(followed="one")
        full = count(whole)._asdict()
        assert count(one) == Counts(**{field: pytest.approx(value) for field, value in full.items()})
    for algorithm in SYMMETRIC:
        rows, wanted = spread(trace(algorithm, Symmetric(p), p, "all_gather")).rows, table(algorithm, p).rows
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, wanted.tolist()))


def test_one_chunk_stands_for_all_in_mutants_too() -> None:
    rng = np.random.default_rng(2)
    seen: Counter[str] = Counter()
    for p in (2, 3, 5, 8):
        for one in symmetric_tables(p):
            for mutant in mutants(one, rng, 25):
                said = verdict(mutant)
                seen[said] += 1
                assert verdict(spread(mutant)) == said, mutant
    assert seen["AlgorithmError"] > 500
    assert seen["accepted"] > 10


NAMED = (
    (lambda r, p: [send(0, r, r)], 4, ArgumentError, "got source 0"),
    (lambda r, p: [send(r, (r + 1) % p, 0)], 4, ArgumentError, "got 0 as a rank or chunk"),
    (lambda r, p: [send(r, (r + 1) % 3, r)], 4, TypeError, "known only modulo 4, not modulo 3"),
    (all_gather.ring, 8, ArgumentError, "ring: is not symmetric"),
)


@pytest.mark.parametrize(("of", "chunks", "error", "said"), NAMED)
def test_algorithms_with_named_ranks_are_refused(of, chunks: int, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        trace(of, Symmetric(4), chunks, "all_gather")


def test_symmetric_table_acts_as_a_table() -> None:
    one, full = trace(all_gather.ring, Symmetric(5), 5, "all_gather"), table(all_gather.ring, 5)
    assert prove(one).same_bits == prove(full).same_bits
    for make in (once, lambda t: pipeline(t, 2), lambda t: on(t, 5, range(5)), lambda t: t.replace(name="other")):
        assert sorted(map(tuple, expand(make(one)).tolist())) == sorted(map(tuple, expand(make(full)).tolist()))
    with pytest.raises(ArgumentError, match=r"5 ranks, 5 chunks, symmetric"):
        seq(one, full)


def test_double_counting_among_many_is_named() -> None:
    one = all_reduce.there_and_back(trace(all_gather.circulant, Symmetric(5000), 5000, "all_gather"))
    with pytest.raises(AlgorithmError, match=r"in round 3 ranks .* would be counted twice in rank \d+'s chunk 0 \("):
        prove(one.replace(rows=np.insert(one.rows, 3, one.rows[3], 0)))


def test_one_wrong_row_at_65536_ranks_is_found() -> None:
    one = trace(all_gather.circulant, Symmetric(LARGE), LARGE, "all_gather")
    assert prove(one).method == "fingerprints"
    rows = one.rows.copy()
    rows[7, N] -= 1
    with pytest.raises(AlgorithmError, match=r"in round 8 rank \d+ is sent rank \d+'s chunk 0, which holds nothing \("):
        prove(one.replace(rows=rows))


@pytest.mark.parametrize("algorithm", [a for a in CATALOGUE.values() if a.collective != "barrier"])
def test_sums_prove_what_sets_prove(algorithm) -> None:
    for p in filter(algorithm.allows, (1, 2, 3, 5, 7, 8, 16)):
        by_sums = prove(algorithm.schedule(p, p // 3), exact=False)
        assert by_sums.method == "fingerprints"
        assert by_sums.same_bits == (True if algorithm.collective == "all_reduce" else None)


@pytest.mark.parametrize("name", ["reduce.chain", "all_gather.bruck", "scan.linear", "all_to_all.pairwise"])
def test_sums_name_the_same_fault_as_sets(name: str) -> None:
    schedule, said = CATALOGUE[name].schedule(5), []
    broken = schedule.replace(rows=np.delete(schedule.rows, 2, 0))
    for exact in (True, False):
        with pytest.raises(AlgorithmError) as caught:
            prove(broken, exact=exact)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_sample_is_a_few_chunks_of_many() -> None:
    assert sample(8, 1000) is None
    assert sample(4, 1 << 30) is None
    assert len(sample(1 << 16, 1 << 33)) == 4
    assert sample(100, 1 << 18) == tuple(sorted(set(sample(100, 1 << 18))))
    assert max(sample(100, 1 << 18)) < 100


def test_some_chunks_are_followed() -> None:
    schedule = CATALOGUE["all_gather.ring"].schedule(4)
    wrong = schedule.replace(rows=schedule.rows[schedule.rows[:, SCHUNK] != 3])
    assert prove(wrong, chunks=(0, 2)).followed == "some"
    assert prove(schedule, chunks=range(4)) == prove(schedule)
    with pytest.raises(AlgorithmError, match="rank 0 ends without rank 3's part of chunk 3; no round writes it"):
        prove(wrong, chunks=(0, 3))


def test_stray_chunks_cannot_be_followed_alone() -> None:
    bruck = CATALOGUE["all_to_all.bruck"].schedule(4)
    with pytest.raises(ArgumentError, match="row 8 moves chunk 3 of X to chunk 3 of T, so no chunks"):
        prove(bruck, chunks=(0,))
    with pytest.raises(ArgumentError, match="got 3 chunks, expected a multiple of 2"):
        prove(table(all_gather.ring, 2).replace(chunks=3))
