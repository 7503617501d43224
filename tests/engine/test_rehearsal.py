"""`rehearse`: every row of programs, with a rank that dies or is late there."""

import pytest

from tests.support.rehearsal import lowerings, rehearse, rows_of
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
