"""A trace that cannot be written, and recordings that are empty, cut or foreign: each is told, and the rest is kept."""

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import unisono
from tests.observe.test_trace import part
from unisono.observe.traces.perfetto import write_trace
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
