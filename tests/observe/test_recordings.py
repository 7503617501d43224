"""What is left of a job: the last calls of all ranks in errors, aligned by number, and recordings, whole or damaged.

However the ranks of a traced job end, its trace and their last calls can be had afterwards.
"""

import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unisono
from tests.observe.test_trace import REDUCE, part, read, text_in, train
from tests.support.on_ranks import FAILED, all_pids, die, in_new_world
from tests.support.waiting import until
from unisono import PeerGone, WaitTimeout
from unisono.base.records import CallRecord
from unisono.engine.logs.plan_registry import PlanNote
from unisono.observe.traces.last_calls import last_calls_text
from unisono.observe.traces.perfetto import write_trace
from unisono.observe.traces.tracks import RankCall, Track
from unisono.tools.cli import app


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
    assert re.search("(?s)ranks 0, 1 left it.*not entered by rank 1", notes_of(caught.value))


def end(how: int) -> None:
    """Ten calls and one more; then both ranks end in this way, rank 0 in a call."""
    group, tensor = unisono.init(), torch.full((4,), unisono.get_rank() + 1.0)
    for _ in range(10):
        unisono.all_reduce(tensor, "max")
    pids = all_pids()
    if group.rank == 1:
        until(lambda: group.engine.entered(0) >= 12)
        for pid in pids:
            os.kill(pid, how)
    unisono.barrier()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_ranks_that_end_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: int) -> None:
    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    assert unisono.run(end, 2, (how,), return_exceptions=True) == [FAILED, FAILED]
    text = text_in(tmp_path)
    assert "has not ended its recording: it was killed, or still runs rank 1 (pid " in text
    assert "rank 0 in it; not entered by rank 1" in text.partition("#12 barrier() (first at ")[2]
    slices = read(tmp_path)[1]
    assert sorted(one["args"]["number"] for one in slices) == sorted([*range(1, 12), *range(1, 13)])
    assert [one["args"]["number"] for one in slices if one["args"].get("unfinished")] == [12]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job of two ranks, which have ended well."""
    folder = tmp_path_factory.mktemp("trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISONO_TRACE", str(folder))
        unisono.run(train, 2, (3,))
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
            write_trace(path, [part(0, [(1, 2, REDUCE)])])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("job.json", "old")]


def fields(**values: object) -> Callable[[bytes], bytes]:
    """Replace fields in the lines that have them."""

    def change(data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.decode().splitlines()]
        for _, what in lines:
            what |= {name: value for name, value in values.items() if name in what}
        return "".join(json.dumps(line) + "\n" for line in lines).encode()

    return change


HEAD, CUT = "is not a recording of a rank", "is missing, or is cut"
DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "empty": ("notes", lambda _: b"", HEAD),
    "cut in the head": ("notes", lambda data: data[:40], HEAD),
    "no text": ("notes", lambda _: b"\xff\xfe\x00" * 50, HEAD),
    "other JSON": ("notes", lambda _: b'[1, 2]\n{}\n["head", {}]\n["head", 3]\n[{}, {}]\n' + b"[" * 100_000, HEAD),
    "words for numbers": ("notes", fields(rank="one"), HEAD),
    "too many ranks": ("notes", fields(size=1 << 60), HEAD),
    "a bad clock": ("notes", fields(clock=["now", 1]), HEAD),
    "an empty log": ("log", lambda _: b"", CUT),
    "a cut log": ("log", lambda data: data[:-5], CUT),
    "no text at the end": ("notes", lambda data: data + b"\xff\xfe", ""),
    "a foreign note": ("notes", fields(record=[3], nbytes=8), ""),
    "a foreign group": ("notes", fields(member=2), ""),
    "foreign numbers in a log": ("log", lambda data: bytes(range(256)) * (len(data) // 256), ""),
}
"""Which files of rank 1 are damaged, how, and what is said of them."""


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_recording(name: str, folder: Path) -> None:
    ending, change, warning = DAMAGE[name]
    for path in (folder / "calls").glob(f"*.rank-1.*.{ending}"):
        path.write_bytes(change(path.read_bytes()))
    done = CliRunner().invoke(app, ["trace", str(folder)])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "where time goes" in done.output
    assert [words for words in (HEAD, CUT) if words in done.output] == [warning][: len(warning)]


def test_no_recording_can_be_read(folder: Path) -> None:
    for path in (folder / "calls").glob("*.notes"):
        path.write_bytes(b"\xff")
    done = CliRunner().invoke(app, ["trace", str(folder)])
    assert (done.exit_code, "cannot read any recording" in " ".join(done.output.split())) == (2, True), done.output
