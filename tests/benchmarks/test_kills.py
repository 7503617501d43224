"""The benchmark of kills: a short training, its replay, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.kills import Step, _read, replay, train_with_kills


@pytest.mark.long
def test_a_training_with_kills_ends_with_the_bits_of_one_without() -> None:
    done = train_with_kills(0.15, (0.5, 1.5))
    state, losses = replay(done.worlds)
    assert done.agree
    assert [step.loss for world in done.worlds for step in world] == losses
    assert state is not None
    assert done.state is not None
    assert torch.equal(state, done.state)
    assert not torch.equal(state[1], torch.zeros_like(state[1]))


def test_a_line_that_a_rank_could_not_finish_is_no_step(tmp_path: Path) -> None:
    log = tmp_path / "0"
    assert _read(log) == []
    log.write_text('[7, [0, 2], "0x1.8p+1", 2.5, 1]\n[8, [0')
    assert _read(log) == [Step(7, (0, 2), "0x1.8p+1", 2.5, 1)]
