"""Traces that cannot be written, and recordings that are empty, cut or foreign: each is told, and the rest is kept."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import unisono
from tests.observe.test_trace import part
from unisono.observe.traces import perfetto, recording
from unisono.observe.traces.perfetto import write_trace
from unisono.observe.traces.recorded import all_have_ended, jobs_in
from unisono.ranks.launch import processes
from unisono.tools.cli import app


def calls() -> None:
    for _ in range(3):
        unisono.all_reduce(torch.ones(4))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job of two ranks, which have ended well."""
    folder = tmp_path_factory.mktemp("trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNISONO_TRACE", str(folder))
        patch.setattr(processes, "GRACE_S", 0.0)  # they take longer: the last one writes the trace
        unisono.run(calls, 2)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it, without the file for Perfetto."""
    (tmp_path / "calls").mkdir()
    for path in (made / "calls").iterdir():
        (tmp_path / "calls" / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_ranks_may_write_for_long(made: Path) -> None:
    (path,) = made.glob("*.json")
    slices = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 6


def test_only_the_last_rank_writes(folder: Path) -> None:
    (job,) = jobs_in(folder)
    for notes in (folder / "calls").glob("*.notes"):
        os.utime(notes, (1, 1))  # long ago
    assert all_have_ended(folder, job)
    first = recording.export([folder], job, only_if_newer=True)
    assert first is not None
    inode = first.stat().st_ino
    assert recording.export([folder], job, only_if_newer=True) == first
    assert first.stat().st_ino == inode, "it was written twice"
    os.utime(notes, ns=(first.stat().st_mtime_ns,) * 2)  # recorded later, as far as the clock of files tells
    recording.export([folder], job, only_if_newer=True)
    assert first.stat().st_ino != inode
    lines = notes.read_text().splitlines()
    me = json.loads(lines[0])[1] | {"pid": os.getpid(), "ticks": recording.start_ticks(os.getpid())}
    notes.write_text("\n".join([json.dumps(["head", me]), *lines[1:-1]]))
    assert not all_have_ended(folder, job)


def test_killed_ranks_leave_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        unisono.barrier()
        raise RuntimeError

    monkeypatch.setenv("UNISONO_TRACE", str(tmp_path))
    with pytest.raises(unisono.RankFailed):
        unisono.run(fails, 2)
    assert f"ranks were killed before they wrote their trace: `unisono trace {tmp_path}`" in capfd.readouterr().err


def full(*_: object) -> Iterator[dict[str, Any]]:
    yield {"ph": "M"}
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.json"
    path.write_text("old")
    monkeypatch.setattr(perfetto, "events", full)
    with pytest.raises(OSError, match="No space left"):
        write_trace(path, [part(0, 0, [(1, 2)])])
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("job.json", "old")]


def test_full_disk_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        perfetto.events = full
        with unisono.tracing(tmp_path):
            unisono.barrier()

    unisono.run(work, 1)
    assert f"is not written: No space left on device: `unisono trace {tmp_path}` writes it" in capfd.readouterr().err


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
LOGS = {
    "an empty log": replaced(".log", lambda _: b""),
    "a cut log": replaced(".log", lambda data: data[:-5]),
    "cut messages": replaced(".messages", lambda data: data[:-8]),
}
LINES = {
    "no text at the end": replaced(".notes", lambda data: data + b"\xff\xfe"),
    "a foreign note": replaced(".notes", fields(record=[3], nbytes=8)),
    "a foreign group": replaced(".notes", fields(members=["x"])),
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
    assert done.exit_code == 2, done.output
    assert "can be read" in " ".join(done.output.split())
