"""`rehearse`: every row of programs, with a rank that dies or is late there; and that it sees what is wrong."""

import os
from typing import Any

import numpy as np
import pytest

from tests.support.rehearsal import _Rehearsal, lowerings, rehearse, rows_of
from unisono import ArgumentError
from unisono.base.errors import AlgorithmError
from unisono.engine.compile.program import DONE, Lowering
from unisono.schedule.algorithms import CATALOGUE

FAMILIES = sorted({name.partition(".")[0] for name in CATALOGUE})


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("collective", FAMILIES)
def test_a_rank_that_dies_or_is_late_at_any_row(collective: str) -> None:
    """The first algorithm of a collective on three ranks, the others on two. `benchmarks.chaos` tries all on 2 to 8."""
    for k, (name, algorithm) in enumerate((n, a) for n, a in CATALOGUE.items() if n.partition(".")[0] == collective):
        ranks = 3 if k == 0 and algorithm.allows(3) else 2
        if not algorithm.allows(ranks):
            continue
        schedule = algorithm.schedule(ranks)
        for lowering in lowerings(schedule):
            victim = ranks - 1
            for row in range(rows_of(schedule, victim, lowering)):
                assert rehearse(schedule, lowering, delay=victim, row=row) == ["done"] * ranks, name
                ends = rehearse(schedule, lowering, kill=victim, row=row)
                assert ends[victim] == "died"
                assert set(ends) <= {"died", "done", "told"}, name


def test_nothing_is_left_of_a_rehearsal() -> None:
    schedule = CATALOGUE["all_reduce.ring"].schedule(2)
    rehearse(schedule, kill=1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        rehearse(schedule, kill=1)
        rows_of(schedule, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_wrong_results_and_endless_waits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = CATALOGUE["all_reduce.ring"].schedule(3)
    turn = _Rehearsal._turn

    def spoil(self: Any, rank: int, plan: Any) -> int:
        status = turn(self, rank, plan)
        if status == DONE and rank == 1:
            self._outputs[1][-1] += 1
        return status

    monkeypatch.setattr(_Rehearsal, "_turn", spoil)
    with pytest.raises(AlgorithmError, match="rank 1 ends with a wrong result"):
        rehearse(schedule, delay=0, row=1)
    monkeypatch.setattr(_Rehearsal, "_turn", turn)
    monkeypatch.setattr(_Rehearsal, "_tell", lambda *_: None)
    with pytest.raises(AlgorithmError, match="would wait for ever"):
        rehearse(schedule, kill=0, row=1)


@pytest.mark.parametrize(
    ("wrong", "words"), [({}, "kill= or by delay="), ({"kill": 9}, "has 3 ranks"), ({"kill": 0, "row": 99}, "rows")]
)
def test_what_cannot_be_rehearsed(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        rehearse(CATALOGUE["all_reduce.ring"].schedule(3), **wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_inputs_out_of_place_stay_as_they_are() -> None:
    rehearsal = _Rehearsal(CATALOGUE["all_reduce.ring"].schedule(3), Lowering(zero_copy=True))
    before = [vector.copy() for vector in rehearsal._given]
    rehearsal.run(1, 2, dies=True)
    assert all(map(np.array_equal, before, rehearsal._given))
    rehearsal.close()
