"""However the ranks of a traced job end, its trace and their last calls can be had afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unisono
from tests.observe.test_trace import read
from tests.support.waiting import until
from unisono.observe.traces.recorded import jobs_in, recorded
from unisono.tools.cli import app

SCRIPT = """
import ctypes, faulthandler, os, signal, sys, time, torch, unisono
how, rank = sys.argv[1], unisono.init().rank
tensor = torch.full((4,), rank + 1.0)
for _ in range(10):
    unisono.all_reduce(tensor, "max")
if how == "abort":
    faulthandler.enable()
    os.abort()
if how == "segv":
    ctypes.string_at(0)
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    while unisono.init().host.entered(0) < 11:
        time.sleep(0.001)
    print("ready", flush=True)
    time.sleep(1000)
unisono.barrier()
"""
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "unisono": ["-m", "unisono", "run", "-n", "2"],
}


def start(folder: Path, launcher: str, how: str) -> subprocess.Popen[str]:
    """Two ranks that end in this way, traced there."""
    (folder / "script.py").write_text(SCRIPT)
    environ = {**os.environ, "UNISONO_TRACE": str(folder), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *LAUNCHERS[launcher], str(folder / "script.py"), how]
    return subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def text_in(folder: Path) -> str:
    """What `unisono trace` says, in one line."""
    done = CliRunner().invoke(app, ["trace", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("how", ["kill", "abort", "segv"])
def test_ranks_that_end_at_once(tmp_path: Path, how: str) -> None:
    with start(tmp_path, "unisono", how) as job:
        assert job.wait(timeout=110)
    text = text_in(tmp_path)
    assert "rank 0 (pid " in text
    assert "has ended without a word rank 1 (pid " in text
    assert "#10 all_reduce(float32[4], max) (first at " in text
    _, slices = read(tmp_path)
    assert sorted(one["args"]["number"] for one in slices) == sorted([*range(1, 11)] * 2)


@pytest.mark.long
def test_a_launcher_that_is_asked_to_end(tmp_path: Path) -> None:
    """As by Slurm, when the time is over: the launcher ends all ranks by SIGTERM."""
    with start(tmp_path, "torchrun", "wait") as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=110)
    text = text_in(tmp_path)
    assert "has ended without a word" in text
    line = text.partition("#11 barrier() (first at ")[2]
    assert "rank 0 in it; not entered by rank 1" in line
    assert any(one["args"].get("unfinished") for one in read(tmp_path)[1])


def test_a_message_that_was_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        arena = unisono.init().host.arena
        if unisono.get_rank() == 0:
            unisono.recv(torch.full((3,), 0.0), 1, tag=5)
        until(lambda: arena.wait_status(0).wait is not None)
        for rank in range(2):
            os.kill(arena.board(rank).pid, signal.SIGKILL)

    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    with pytest.raises(unisono.RankFailed):
        unisono.run(work, 2)
    assert "rank 0: recv 12 B from 1, tag 5, in group 'world'" in text_in(tmp_path)


def test_an_error_has_the_last_calls_of_a_traced_rank_that_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        rank = unisono.get_rank()
        unisono.all_reduce(torch.full((2,), rank + 1.0), "max")
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        unisono.barrier()

    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    with pytest.raises(unisono.RankFailed) as raised:
        unisono.run(work, 2)
    assert "#1 all_reduce(float32[2], max) (first at " in str(raised.value)
    assert "ranks 0, 1 left it" in str(raised.value)


def test_a_rank_that_ends_well_needs_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    unisono.run(unisono.barrier, 2)
    (job,) = jobs_in(tmp_path)
    assert all(part.ended for part in recorded([tmp_path], job))
    assert "without a word" not in text_in(tmp_path)
