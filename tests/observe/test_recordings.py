"""What is left of a job: the last calls of all ranks in errors, aligned by number, and recordings, whole or damaged.

However the ranks of a traced job end, its trace and their last calls can be had afterwards.
"""

import json
import mmap
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unisono
from tests.observe.test_trace import part, read, text_in
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
from unisono.observe.traces.perfetto import write_trace
from unisono.observe.traces.tracks import RankCall, Track
from unisono.tools.cli import app


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


def calls() -> None:
    for _ in range(3):
        unisono.all_reduce(torch.ones(4))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job of two ranks, which have ended well."""
    folder = tmp_path_factory.mktemp("trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISONO_TRACE", str(folder))
        unisono.run(calls, 2)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path, limits = tmp_path / "job.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_text("old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_trace(path, [part(0, 0, [(1, 2)])])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("job.json", "old")]


def replaced(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Damage the files of rank 1 with this ending."""

    def damage(folder: Path) -> None:
        for path in (folder / "calls").glob(f"*.rank-1.*{pattern}"):
            path.write_bytes(change(path.read_bytes()))

    return damage


def fields(**values: object) -> Callable[[bytes], bytes]:
    """Replace fields in the lines that have them."""

    def change(data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.decode().splitlines()]
        for _, what in lines:
            what |= {name: value for name, value in values.items() if name in what}
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    return change


NOTES = {
    "empty": replaced(".notes", lambda _: b""),
    "cut in the head": replaced(".notes", lambda data: data[:40]),
    "no text": replaced(".notes", lambda _: b"\xff\xfe\x00" * 50),
    "other JSON": replaced(".notes", lambda _: b'[1, 2]\n{}\n["head", {}]\n["head", 3]\n[{}, {}]\n' + b"[" * 100_000),
    "words for numbers": replaced(".notes", fields(rank="one")),
    "too many ranks": replaced(".notes", fields(size=1 << 60)),
    "a bad clock": replaced(".notes", fields(clock=["now", 1])),
}
LOGS = {"an empty log": replaced(".log", lambda _: b""), "a cut log": replaced(".log", lambda data: data[:-5])}
LINES = {
    "no text at the end": replaced(".notes", lambda data: data + b"\xff\xfe"),
    "a foreign note": replaced(".notes", fields(record=[3], nbytes=8)),
    "a foreign group": replaced(".notes", fields(member=2)),
    "foreign numbers in a log": replaced(".log", lambda data: bytes(range(256)) * (len(data) // 256)),
}


@pytest.mark.parametrize("damage", [*NOTES, *LOGS, *LINES])
def test_damaged_recording(damage: str, folder: Path) -> None:
    {**NOTES, **LOGS, **LINES}[damage](folder)
    done = CliRunner().invoke(app, ["trace", str(folder)])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "where time goes" in done.output
    assert ("is not a recording of a rank" in done.output) == (damage in NOTES)
    assert ("is missing, or is cut" in done.output) == (damage in LOGS)


def test_no_recording_can_be_read(folder: Path) -> None:
    for path in (folder / "calls").glob("*.notes"):
        path.write_bytes(b"\xff")
    done = CliRunner().invoke(app, ["trace", str(folder)])
    assert (done.exit_code, "cannot read any recording" in " ".join(done.output.split())) == (2, True), done.output
