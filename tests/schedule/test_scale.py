"""Proofs by one symbolic rank and by fingerprints: they agree with the exact one, and reach 65,536 ranks."""

from collections import Counter

import numpy as np
import pytest

from tests.schedule.test_proof import mutants
from tests.support.each import each
from tests.support.schedule_oracles import is_right
from unisono.base.errors import AlgorithmError, ArgumentError
from unisono.schedule import (
    ADD,
    DST,
    HOLDERS,
    ROUND,
    Counts,
    N,
    Rank,
    Y,
    as_collective,
    count,
    expand,
    on,
    once,
    pipeline,
    prove,
    prove_by_fingerprints,
    prove_symmetric,
    send,
    seq,
    spread,
    trace,
    trace_symmetric,
    transpose,
)
from unisono.schedule.algorithms import CATALOGUE, all_gather, all_reduce, all_to_all, table

SYMMETRIC = [all_gather.direct, all_gather.ring, all_gather.two_way_ring, all_gather.bruck, all_gather.circulant]
SYMMETRIC.append(all_gather.pat)
LARGE = 65536


@each("algorithm", SYMMETRIC)
def test_one_rank_speaks_for_all(algorithm) -> None:
    for p in (1, 2, 3, 5, 7, 8, 16, 17):
        one = trace_symmetric(algorithm, p, "all_gather")
        rows, full = spread(one).rows, table(algorithm, p).rows
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, full.tolist()))
        for schedule in (one, transpose(one), all_reduce.there_and_back(one)):
            assert prove_symmetric(schedule).method == "symmetric fingerprints"
            prove(spread(schedule))


def test_the_symmetric_proof_accepts_no_mutant_that_computes_something_else() -> None:
    rng = np.random.default_rng(2)
    seen: Counter[str] = Counter()
    for algorithm in SYMMETRIC:
        for p in (2, 3, 5, 8):
            one = trace_symmetric(algorithm, p, "all_gather")
            for schedule in (one, transpose(one), all_reduce.there_and_back(one)):
                for mutant in mutants(schedule, rng, 25):
                    said = verdict(prove_symmetric, mutant)
                    seen[said] += 1
                    whole = spread(mutant)
                    assert is_right(whole, 101) if said == "accepted" else verdict(prove, whole) == said, mutant
    assert seen["AlgorithmError"] > 500
    assert seen["accepted"] > 10


def test_a_symbolic_rank_knows_plus_minus_and_modulo_p_only() -> None:
    r = Rank(5, 3)
    assert [x.offset for x in (r + 4, 4 + r, r - 4, (r + 2) % 5)] == [2, 2, 4, 0]
    assert repr(r) == "(r + 3) % 5"
    for use in (lambda: r ^ 1, lambda: r * 2, lambda: r // 2, lambda: r < 1, lambda: r % 4, lambda: [0][r], lambda: -r):
        with pytest.raises(TypeError):
            use()


def test_algorithms_that_name_ranks_are_no_symmetric_ones() -> None:
    def star(r, p):
        yield send(0, r, r)

    def fixed_chunk(r, p):
        yield send(r, (r + 1) % p, 0)

    with pytest.raises(ArgumentError, match="star: round 0: every rank must send for itself, not for 0"):
        trace_symmetric(star, 4, "all_gather")
    with pytest.raises(ArgumentError, match="fixed_chunk: 0 is"):
        trace_symmetric(fixed_chunk, 4, "all_gather")
    with pytest.raises(ArgumentError, match="has no symmetric proof"):
        prove_symmetric(
            table(all_gather.ring, 3, collective="all_gather").__class__(3, 1, np.zeros((0, 9), int), "scan")
        )


@each("algorithm", SYMMETRIC)
def test_one_rank_counts_for_all(algorithm) -> None:
    for p in (1, 2, 3, 8, 17):
        one = trace_symmetric(algorithm, p, "all_gather")
        for schedule in (one, transpose(one), all_reduce.there_and_back(one)):
            counts, full = count(schedule), count(spread(schedule))
            assert counts == Counts(**{field: pytest.approx(value) for field, value in full._asdict().items()})


@pytest.mark.parametrize("algorithm", [all_to_all.direct, all_to_all.pairwise], ids=lambda f: f.__name__)
def test_one_rank_speaks_for_all_in_an_all_to_all(algorithm) -> None:
    rng = np.random.default_rng(4)
    seen: Counter[str] = Counter()
    for p in (1, 2, 3, 5, 8):
        one = trace_symmetric(algorithm, p, "all_to_all", result=Y)
        assert prove_symmetric(one).ranks == p
        for mutant in mutants(one, rng, 25):
            said = verdict(prove_symmetric, mutant)
            seen[said] += 1
            assert said == verdict(prove, spread(mutant)), mutant
    assert seen["AlgorithmError"] > 50


def test_a_symmetric_table_may_stand_wherever_a_table_may() -> None:
    one, full = trace_symmetric(all_gather.ring, 5, "all_gather"), table(all_gather.ring, 5)
    assert prove(one).same_bits == prove(full).same_bits
    for make in (once, lambda t: pipeline(t, 2), lambda t: on(t, 5, range(5)), as_collective_all_gather):
        assert sorted(map(tuple, expand(make(one)).tolist())) == sorted(map(tuple, expand(make(full)).tolist()))
    with pytest.raises(ArgumentError, match=r"5 ranks, 5 chunks, symmetric"):
        seq(one, full)


def as_collective_all_gather(schedule):
    return as_collective(schedule, "all_gather")


def test_a_rank_that_is_counted_twice_among_many_is_found() -> None:
    one = all_reduce.there_and_back(trace_symmetric(all_gather.circulant, 5000, "all_gather"))
    with pytest.raises(AlgorithmError, match="rank r ends without each part"):
        prove_symmetric(one.replace(rows=np.insert(one.rows, 3, one.rows[3], 0)))


@pytest.mark.long
@each("algorithm", SYMMETRIC)
def test_symmetric_all_reduce_at_65536_ranks(algorithm) -> None:
    one = trace_symmetric(algorithm, LARGE, "all_gather")
    proof = prove_symmetric(all_reduce.there_and_back(one))
    assert proof.ranks == LARGE
    assert len(one.rows) >= 16


def test_one_wrong_row_at_65536_ranks_is_found() -> None:
    one = trace_symmetric(all_gather.circulant, LARGE, "all_gather")
    rows = one.rows.copy()
    rows[7, N] -= 1
    with pytest.raises(AlgorithmError, match="holds nothing"):
        prove_symmetric(one.replace(rows=rows))


def verdict(check, schedule) -> str:
    try:
        check(schedule)
    except (AlgorithmError, ArgumentError) as error:
        return type(error).__name__
    return "accepted"


FINGERPRINTED = [a for a in CATALOGUE.values() if a.collective in HOLDERS]


@each("algorithm", FINGERPRINTED)
def test_fingerprints_agree_with_the_exact_proof(algorithm) -> None:
    for p in filter(algorithm.allows, (1, 2, 3, 5, 7, 8, 16)):
        schedule = algorithm.schedule(p, p // 3)
        assert prove_by_fingerprints(schedule, columns=schedule.chunks).method == "fingerprints"


def test_fingerprints_accept_no_mutant_that_computes_something_else() -> None:
    rng = np.random.default_rng(3)
    seen: Counter[str] = Counter()
    for algorithm in FINGERPRINTED:
        for p in filter(algorithm.allows, (2, 3, 4, 7, 8)):
            for mutant in mutants(algorithm.schedule(p, p // 3), rng, 8):
                said = verdict(lambda schedule: prove_by_fingerprints(schedule, columns=schedule.chunks), mutant)
                seen[said] += 1
                if said == "accepted":
                    assert is_right(mutant, 101), (algorithm.full_name, p, mutant.rows.tolist())
                elif said == "AlgorithmError":
                    assert verdict(prove, mutant) == said
    assert seen["AlgorithmError"] > 1000
    assert seen["accepted"] > 10


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("all_reduce.circulant", LARGE),
        ("all_reduce.rabenseifner", LARGE - 1),
        ("all_reduce.recursive_doubling", LARGE),
        ("broadcast.binomial", LARGE),
    ],
)
def test_fingerprints_at_65536_ranks(name: str, ranks: int) -> None:
    schedule = CATALOGUE[name].build(ranks, 0)
    assert prove_by_fingerprints(schedule).ranks == ranks
    broken = schedule.rows.copy()
    middle = broken[:, ROUND] == schedule.rounds // 2
    broken[middle, DST] = (broken[middle, DST] + 1) % ranks
    with pytest.raises(AlgorithmError):
        prove_by_fingerprints(schedule.replace(rows=broken))


def test_many_large_fingerprints_are_added_without_overflow() -> None:
    prove_by_fingerprints(CATALOGUE["reduce.linear"].schedule(5000))


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ([send(1, 0, 0)], "in round 0 rank 1 sends chunk 0 to rank 0, but the sender holds nothing"),
        ([send(0, 1, 0, op=ADD)], "the receiver holds nothing that could be added to"),
        ([[send(0, 1, 0), send(0, 1, 0)]], "the receiver's slot is written twice"),
        ([], "rank 1 ends without every part of chunk 0 exactly once"),
    ],
)
def test_fingerprints_name_the_place_and_the_reason(rounds, message: str) -> None:
    def these(r, p):
        return rounds

    with pytest.raises(AlgorithmError, match=message):
        prove_by_fingerprints(trace(these, 2, 1, "broadcast"))


def test_fingerprints_are_for_chunks_that_keep_their_number() -> None:
    with pytest.raises(ArgumentError, match="no chunk changes its number"):
        prove_by_fingerprints(CATALOGUE["all_to_all.pairwise"].schedule(4))
    with pytest.raises(ArgumentError, match="needs a multiple of 2 chunks, not 3"):
        prove_by_fingerprints(table(all_gather.ring, 2).replace(chunks=3))
