"""Errors of calls that do not end come with the last calls of all ranks, aligned by number.

However the ranks of a traced job end, its trace and their last calls can be had afterwards.
"""

import mmap
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unisono
from tests.observe.test_trace import read, text_in
from tests.support.faults import FAILED, die
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono import PeerGone, WaitTimeout
from unisono.base.records import CallRecord
from unisono.engine.logs import rank_logs
from unisono.engine.logs.plan_registry import PlanNote
from unisono.engine.logs.rank_logs import CallLog, log_bytes
from unisono.observe.traces import recorded as recording
from unisono.observe.traces.last_calls import last_calls_text
from unisono.observe.traces.tracks import RankCall, Track


def test_recording_leaves_out_half_written_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(log_bytes(8)))
    with path.open("r+b") as file:
        calls = CallLog(memoryview(mmap.mmap(file.fileno(), 0)))
    for number in range(1, 9):
        calls.enter(number, 1, number)
    numbers = iter(range(9, 10))

    def write_meanwhile() -> None:
        for number in numbers:
            calls.enter(number, 1, number)

    monkeypatch.setattr(rank_logs, "order", write_meanwhile)
    seen = recording._log(tmp_path, path.name)
    assert seen is not None
    assert [one.number for one in seen.read()] == [4, 5, 6, 7, 8]


def track(rank: int, *calls: RankCall) -> Track:
    return Track("world", 0, rank, rank, 3, calls)


def call(number: int, entered_us: int, left_us: int, counts: int = 2) -> RankCall:
    note = PlanNote(CallRecord("all_reduce", "float32", (counts,), op="sum", where=f"a.py:{counts}"), 8)
    return RankCall(number, 1000 * entered_us, 1000 * left_us, note)


def test_calls_are_aligned_by_number() -> None:
    tracks = [
        track(0, call(1, 100, 140), call(2, 200, 0)),
        track(1, call(1, 130, 150), call(2, 210, 0, 5)),
        track(2, call(1, 110, 151)),
    ]
    assert last_calls_text(tracks, 1_200_000).splitlines() == [
        "last calls of group 'world', by number:",
        "  #1 all_reduce(float32[2], sum) (first at a.py:2): ranks 0, 1, 2 left it, after 41 µs at most; "
        "rank 1 came last, 30 µs after the first",
        "  #2 all_reduce(float32[2], sum) (first at a.py:2): rank 0 in it, for 1 ms at most",
        "  #2 all_reduce(float32[5], sum) (first at a.py:5): rank 1 in it, for 990 µs at most; not entered by rank 2",
    ]
    assert last_calls_text([], 0) == ""
    assert last_calls_text(tracks).splitlines()[2].endswith("(first at a.py:2): rank 0 in it")


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


@pytest.mark.ranks(3)
def test_timeout_shows_who_misses_the_call() -> None:
    pair = unisono.new_group([0, 2], name="pair")
    tensor = torch.full((3,), unisono.get_rank() + 1.0)
    if pair:
        unisono.all_reduce(tensor, "max", group=pair)
    unisono.barrier()  # both have left it
    if unisono.get_rank() == 0:
        with pytest.raises(WaitTimeout) as caught:
            unisono.all_reduce(tensor, "min", group=pair, timeout_s=0.1)
        said = r"""last calls of group 'pair', by number:
  #1 all_reduce\(float32\[3\], max\) \(first at .*ranks 0, 2 left it.*
  #2 all_reduce\(float32\[3\], min\) \(first at .*rank 0 in it, for .*not entered by rank 2"""
        assert re.match(said, notes_of(caught.value))
    unisono.barrier()


@in_new_world(2, return_exceptions=True, gives=[None, FAILED])
def test_calls_of_a_dead_rank_are_shown() -> None:
    group, tensor = unisono.init(), torch.full((3,), unisono.get_rank() + 1.0)
    unisono.all_reduce(tensor, "max")
    if group.rank == 1:
        until(lambda: group.engine.entered(0) >= 2)
        die()
    with pytest.raises(PeerGone) as caught:
        unisono.all_reduce(tensor, "min")
    assert "ranks 0, 1 left it" in notes_of(caught.value)
    assert "not entered by rank 1" in notes_of(caught.value)


SCRIPT = """
import ctypes, faulthandler, os, sys, time, torch, unisono
how, rank = sys.argv[1], unisono.init().rank
tensor = torch.full((4,), rank + 1.0)
for _ in range(10):
    unisono.all_reduce(tensor, "max")
if how == "abort":
    faulthandler.enable()
{"abort": os.abort, "segv": lambda: ctypes.string_at(0), "kill": lambda: os.kill(os.getpid(), 9)}.get(how, int)()
if rank == 1:
    while unisono.init().engine.entered(0) < 11:
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


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("how", ["kill", "abort", "segv"])
def test_ranks_that_end_at_once(tmp_path: Path, how: str) -> None:
    with start(tmp_path, "unisono", how) as job:
        assert job.wait(timeout=110)
    text = text_in(tmp_path)
    assert "rank 0 (pid " in text
    assert "has not ended its recording: it was killed, or still runs rank 1 (pid " in text
    assert "#10 all_reduce(float32[4], max) (first at " in text
    _, slices = read(tmp_path)
    assert sorted(one["args"]["number"] for one in slices) == sorted([*range(1, 11)] * 2)


@pytest.mark.long
def test_launcher_that_is_asked_to_end(tmp_path: Path) -> None:
    """As by Slurm, when the time is over: the launcher ends all ranks by SIGTERM."""
    with start(tmp_path, "torchrun", "wait") as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=110)
    text = text_in(tmp_path)
    assert "has not ended its recording" in text
    line = text.partition("#11 barrier() (first at ")[2]
    assert "rank 0 in it; not entered by rank 1" in line
    assert any(one["args"].get("unfinished") for one in read(tmp_path)[1])
