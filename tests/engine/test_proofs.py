"""Every compiled program is proved free of races, of deadlock and of wrong values, alone and in random company."""

from __future__ import annotations

import random
from functools import cache

import pytest

from unisono.base.errors import AlgorithmError, ProgramError
from unisono.engine.compile import program_proof
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.program_proof import CompiledCall, prove_calls, prove_programs
from unisono.schedule import ADD, ROOTED, Schedule, send, trace
from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing import check_algorithm
from unisono.tools.testing.check import lowerings

pytestmark = pytest.mark.quick


@cache
def calls(ranks: int) -> list[CompiledCall]:
    """A call of every algorithm of the catalogue, for the first, a middle and the last root, lowered in every way."""
    found = []
    for algorithm in CATALOGUE.values():
        if not algorithm.allows(ranks):
            continue
        for root in sorted({0, ranks // 2, ranks - 1}) if algorithm.collective in ROOTED else [0]:
            schedule = algorithm.schedule(ranks, root)
            found += [CompiledCall(schedule, compile_schedule(schedule, how), how) for how in lowerings(schedule)]
    return found


@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_program_of_the_catalogue_is_proved(ranks: int) -> None:
    for call in calls(ranks):
        prove_programs(*call)
    assert {call.schedule.name for call in calls(ranks)} == {
        name for name, algorithm in CATALOGUE.items() if algorithm.allows(ranks)
    }


@pytest.mark.parametrize("segments", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_programs_may_follow_each_other_in_any_order(
    ranks: int, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With one or three segments a call begins in another half of the staging area than the one before, with two not.
    monkeypatch.setattr(program_proof, "_SEGMENTS", segments)
    draw = random.Random(ranks * 10 + segments)
    for _ in range(25):
        prove_calls(draw.choices(calls(ranks), k=6))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_programs_of_different_lowerings_are_not_interchangeable(ranks: int) -> None:
    staged, _, shared, _ = (call for call in calls(ranks) if call.schedule.name == "all_reduce.two_shot")
    mixed = CompiledCall(staged.schedule, [shared.programs[0], *staged.programs[1:]], staged.lowering)
    with pytest.raises(ProgramError):
        prove_calls([mixed, mixed])


def test_a_table_that_moves_a_chunk_within_its_block_has_no_program() -> None:
    table = trace(lambda r, p, root: [send(0, 1, 0, to=1)], 2, 2, "broadcast", root=0)
    with pytest.raises(AlgorithmError, match="sizes may differ"):
        compile_schedule(table, next(lowerings(table)))


def test_a_table_that_reads_what_nobody_wrote_has_no_program() -> None:
    table = trace(lambda r, p, root: [send(1, 0, 0)], 2, 1, "broadcast", root=0)
    with pytest.raises(AlgorithmError, match="holds nothing"):
        compile_schedule(table, next(lowerings(table)))


def test_check_algorithm_accepts_the_right_and_names_the_wrong() -> None:
    def right(r, p):  # type: ignore[no-untyped-def]
        for k in range(1, p):
            yield send(r, (r + k) % p, r)

    def counts_twice(r, p):  # type: ignore[no-untyped-def]
        for k in range(p):
            yield send(r, (r + k) % p, 0, op=ADD)

    proofs = check_algorithm("all_gather", right)
    assert [proof.ranks for proof in proofs] == [1, 2, 3, 4, 5, 7, 8]
    assert {proof.ranks for proof in check_algorithm("broadcast", "binomial", ranks=(3,))} == {3}
    with pytest.raises(AlgorithmError, match="counted twice"):
        check_algorithm("all_reduce", counts_twice)
    with pytest.raises(ValueError, match="allows none of 3 ranks"):
        check_algorithm("all_reduce", "swing", ranks=(3,))


def test_steps_beyond_what_a_progress_word_counts_are_refused() -> None:
    # Ranks 0 and 1 throw a chunk back and forth more often than there are steps.
    def ping_pong(r, p, root):  # type: ignore[no-untyped-def]
        for k in range(2 * 4096 + 1):
            yield send(k % 2, 1 - k % 2, 0)

    table: Schedule = trace(ping_pong, 2, 1, "broadcast", root=0)
    with pytest.raises(AlgorithmError, match="no more than 4096 steps"):
        compile_schedule(table, next(lowerings(table)))
