"""The chaos benchmark: a rehearsal of all algorithms on two ranks, a trial of each kind, and its report."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from benchmarks.chaos import Trial, chaos_markdown, rehearsals, trial

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing.chaos import FAULTS


@pytest.mark.long
@pytest.mark.timeout(300)  # forty seconds on a machine that does nothing else
def test_a_rehearsal_of_all_algorithms() -> None:
    done = [*rehearsals(2, 0, 2), *rehearsals(2, 1, 2)]
    assert sorted(name for name, _, _ in done) == sorted(CATALOGUE)
    assert all(ends["done"] for _, tried, ends in done if tried)


@pytest.mark.parametrize("over_hosts", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_trial(fault: str, over_hosts: bool) -> None:
    assert trial(random.Random(1), fault, over_hosts=over_hosts).as_it_should


def test_the_report() -> None:
    seen = {0: {"end": "failed [1]", "right": True, "heard": 7.05, "shrunk": 0.002, "worked": 0.001}}
    trials = [Trial("kill", 1, 2, 7.0, seen)] * 2 + [Trial("delay", 1, 2, 7.0, {0: {"end": "mismatch"}})]
    rehearsed = [("all_reduce.ring", 10, Counter(done=12, told=4)), ("broadcast.binomial", 5, Counter(done=3))]
    text = "\n".join(chaos_markdown({"date": "a day"}, rehearsed, trials, {4: (1000, 0)}, 8))
    assert "15 faults" in text
    assert "15 times a rank had the right result, 4 times" in text
    assert "| kill | 2 | 2 | 50.0, 50.0 | 2.0, 2.0 | 1.0, 1.0 |" in text
    assert "| delay | 1 | 0 |" in text
    assert "4 ranks per processor, and one hog: 1,000 calls, 0 false alarms." in text
