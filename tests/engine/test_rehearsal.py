"""`rehearse`: every row of programs, with a rank that dies or is late there."""

import pytest

from tests.conftest import NIGHTLY
from tests.support.rehearsal import lowerings, rehearse, rows_of
from unisono.schedule.algorithms import CATALOGUE

FAMILIES = sorted({name.partition(".")[0] for name in CATALOGUE})


@pytest.mark.sampled(most=3)
@pytest.mark.timeout(900 if NIGHTLY else 120)
@pytest.mark.parametrize("collective", FAMILIES)
def test_a_rank_that_dies_or_is_late_at_any_row(collective: str) -> None:
    """The first algorithm of a collective on three ranks, the others on two; nightly, each victim of two to eight."""
    for k, (name, algorithm) in enumerate((n, a) for n, a in CATALOGUE.items() if n.partition(".")[0] == collective):
        ranks = 3 if k == 0 and algorithm.allows(3) else 2
        for count in range(2, 9) if NIGHTLY else [ranks]:
            if not algorithm.allows(count):
                continue
            schedule = algorithm.schedule(count)
            for lowering in lowerings(schedule):
                for victim in range(count) if NIGHTLY else [count - 1]:
                    for row in range(rows_of(schedule, victim, lowering)):
                        assert rehearse(schedule, lowering, delay=victim, row=row) == ["done"] * count, name
                        ends = rehearse(schedule, lowering, kill=victim, row=row)
                        assert ends[victim] == "died"
                        assert set(ends) <= {"died", "done", "told"}, name
