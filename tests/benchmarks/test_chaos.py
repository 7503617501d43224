"""The chaos benchmark: a rehearsal of all algorithms on two ranks, a trial of each kind, and its report."""

from __future__ import annotations

import random

import pytest
from benchmarks.chaos import rehearsals, trial

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing.chaos import FAULTS


@pytest.mark.long
@pytest.mark.timeout(300)  # forty seconds on a machine that does nothing else
def test_a_rehearsal_of_all_algorithms() -> None:
    done = [*rehearsals(2, 0, 2), *rehearsals(2, 1, 2)]
    assert sorted(name for name, _, _ in done) == sorted(CATALOGUE)
    assert all(ends["done"] for _, tried, ends in done if tried)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_trial(fault: str) -> None:
    assert trial(random.Random(1), fault).as_it_should
