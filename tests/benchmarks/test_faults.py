"""The benchmarks of faults: trials of each kind are right, and reports say what ranks saw. No test looks at a time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from benchmarks import chaos
from benchmarks.faults.scene import Said, Seen, play
from benchmarks.faults.watched import watched_markdown
from benchmarks.kills import Step, _read, replay, train_with_kills

from unisono.schedule.algorithms import CATALOGUE
from unisono.tools.testing.chaos import FAULTS


def test_a_dead_rank_is_named_where_it_is_watched() -> None:
    without, watched = play("is killed", watched=False), play("is killed", watched=True)
    for rank in range(3):
        assert without[rank].told is None
        silent, end = without[rank].end, watched[rank].end
        assert silent
        assert "rank 3" not in silent.line
        assert end
        assert end.line.startswith("unisono.PeerGone: rank 3 (pid ")
        assert f"killed by signal 9 (SIGKILL) while rank {rank} waited for it in all_reduce(float32[25000]" in end.line
    assert watched[3] == without[3] == Seen(None, Said(0.0, "ended by SIGKILL"))


def test_the_report_of_groups_that_are_watched() -> None:
    late, early = Seen(None, Said(10.0, "Error: no | time left")), Seen(Said(0.02, "unisono: rank 3 died"), None)
    said = Seen(Said(0.02, "unisono: rank 3 died"), Said(0.03, "unisono.PeerGone: rank 3 died"))
    mute = Seen(None, None)
    scenes = {"dies": ({0: late, 1: late, 2: late, 3: mute}, {0: said, 1: said, 2: said, 3: mute}),
              "hangs": ({0: mute, 1: late, 2: mute, 3: mute}, {0: early, 1: early, 2: early, 3: mute})}  # fmt: skip
    text = "\n".join(watched_markdown({"date": "a day"}, scenes))
    assert "| dies | 10 s | never | 10 s | 20 ms | 20 ms | 30 ms |" in text
    assert "| hangs | 10 s | never | never | 20 ms | 20 ms | never |" in text
    assert (
        "|  | 2 | 10 s: Error: no \\| time left | 20 ms: unisono: rank 3 died<br>30 ms: unisono.PeerGone: rank 3 died |"
        in text
    )
    assert "|  | 3 | has not ended | has not ended |" in text


@pytest.mark.long
@pytest.mark.timeout(300)  # forty seconds on a machine that does nothing else
def test_a_rehearsal_of_all_algorithms() -> None:
    done = [*chaos.rehearsals(2, 0, 2), *chaos.rehearsals(2, 1, 2)]
    assert sorted(name for name, _, _ in done) == sorted(CATALOGUE)
    assert all(ends["done"] for _, tried, ends in done if tried)


@pytest.mark.parametrize("over_hosts", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_trial_in_live_ranks(fault: str, over_hosts: bool) -> None:
    assert chaos.trial(random.Random(1), fault, over_hosts=over_hosts).as_it_should


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
