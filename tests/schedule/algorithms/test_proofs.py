"""Every algorithm of the catalogue keeps its contract: by proof, on data, and under other bounds."""

import numpy as np
import pytest

from tests.support.each import each
from tests.support.execute import execute
from tests.support.schedule_oracles import all_to_all_v_is_right, is_right
from unisono.base.errors import AlgorithmError
from unisono.schedule import DST, SRC, Schedule, X, moves, prove
from unisono.schedule.algorithms import CATALOGUE, Algorithm, hierarchical

pytestmark = pytest.mark.quick

ALL = each("algorithm", CATALOGUE.values())
SIZES = (0, 1, 5, 37)


def tables(algorithm: Algorithm, sizes: range):
    for p in sizes:
        if algorithm.allows(p):
            for root in sorted({0, p // 3, p - 1}):
                yield algorithm.schedule(p, root)


def keeps_order(schedule: Schedule) -> bool:
    try:
        prove(schedule, ordered=True)
    except AlgorithmError:
        return False
    return True


@ALL
def test_exact_proof(algorithm: Algorithm) -> None:
    proved = [prove(schedule) for schedule in tables(algorithm, range(1, 18))]
    assert {proof.ranks for proof in proved} == {p for p in range(1, 18) if algorithm.allows(p)}
    assert {proof.same_bits for proof in proved} == {True if algorithm.collective == "all_reduce" else None}


@ALL
def test_gives_the_right_result_on_data(algorithm: Algorithm) -> None:
    for schedule in tables(algorithm, range(1, 10)):
        for count in SIZES:
            assert is_right(schedule, count), (schedule.ranks, schedule.root, count)


@ALL
def test_one_rank_moves_nothing_to_others(algorithm: Algorithm) -> None:
    schedule = algorithm.schedule(1)
    assert (schedule.rows[:, SRC] == schedule.rows[:, DST]).all()
    # Where input and output are two buffers it copies; an exscan leaves rank 0 nothing.
    assert bool(len(schedule.rows)) == (schedule.result != X and algorithm.collective != "exscan")


@ALL
def test_commutative_is_required_if_unordered(algorithm: Algorithm) -> None:
    cases = [(p, root) for p in range(2, 10) if algorithm.allows(p) for root in range(p)]
    kept = all(keeps_order(algorithm.schedule(*case)) for case in cases)
    assert kept == ("commutative" not in algorithm.requires)


@ALL
def test_proof_at_16_ranks_takes_few_look_ups(algorithm: Algorithm) -> None:
    reads = sum(len(move.sources) for _, round_ in moves(algorithm.schedule(16)) for move in round_)
    assert reads <= 1000


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "gather", "scatter"])
def test_unequal_blocks_need_no_other_table(name: str) -> None:
    for algorithm in CATALOGUE.values():
        for p in range(1, 9):
            if algorithm.collective == name and algorithm.allows(p):
                rng = np.random.default_rng(p)
                bounds = np.concatenate([[0], rng.integers(0, 9, p).cumsum()])
                assert is_right(algorithm.schedule(p, p // 2), int(bounds[-1]), seed=p, bounds=bounds)


@pytest.mark.parametrize("name", ["direct", "pairwise"])
def test_unequal_blocks_of_all_to_all(name: str) -> None:
    for p in range(1, 9):
        assert all_to_all_v_is_right(CATALOGUE[f"all_to_all.{name}"].schedule(p), seed=p)


@pytest.mark.parametrize(("islands", "local"), [(1, 1), (1, 6), (6, 1), (2, 3), (3, 2), (4, 4), (5, 3)])
def test_hierarchical_takes_islands_of_any_size(islands: int, local: int) -> None:
    schedule = hierarchical.all_reduce(islands * local, local)
    prove(schedule)
    assert is_right(schedule, 37)


@each("algorithm", [a for a in CATALOGUE.values() if a.collective == "all_reduce"])
@pytest.mark.parametrize("p", [2, 3, 5, 7, 8])
def test_proof_knows_sums_of_the_same_bits(algorithm: Algorithm, p: int) -> None:
    if not algorithm.allows(p):
        return
    schedule = algorithm.schedule(p)
    rng = np.random.default_rng(p)
    data = (rng.standard_normal((p, 40 * schedule.chunks)) * 10.0 ** rng.integers(-3, 4, (p, 1))).astype(np.float32)
    sums = np.array(execute(schedule, data)[schedule.result])
    assert prove(schedule).same_bits == (sums == sums[0]).all()
