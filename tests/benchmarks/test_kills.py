"""The benchmark of kills: a short training, its replay, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.kills import Step, Training, _read, kills_markdown, replay, train_with_kills


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


def test_the_report() -> None:
    both, one = (0, 1), (1,)
    worlds = [
        [Step(0, both, "0x1p+1", 1.0, 1), Step(1, both, "0x1p+1", 1.5, 1), Step(2, both, "0x1p+1", 2.1, 2)],
        [Step(3, both, "0x1p+0", 9.1, 1), Step(4, one, "0x1p+0", 9.4, 2)],
    ]
    replayed = ["0x1p+1"] * 4 + ["0x1p+0"]
    done = Training(worlds, [1.8, 9.3], None, agree=True)
    text = "\n".join(kills_markdown({"date": "a day"}, (1.0, 5.0), done, replayed, same_model=False))
    for words in (
        "| kills | 2 |",
        "| steps made again, or lost | 2, 0 |",
        "go on: median, most | 100 ms, 100 ms |",
        "next one: median, most | 7 s, 7 s |",
        "| losses equal to those without kills, to the last bit | 4 of 5 |",
        "same bits | NO |",
    ):
        assert words in text
