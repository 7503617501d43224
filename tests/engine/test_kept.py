"""Files that are made once and kept: which are believed, which are made again; and the programs of large groups."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from unisono.base.errors import AlgorithmError
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.kept_programs import program
from unisono.engine.compile.program import Lowering, Program
from unisono.engine.kept import Kept
from unisono.schedule.algorithms import CATALOGUE

pytestmark = pytest.mark.quick

CONTENT = bytes(range(200))
RANKS = 16
RING = CATALOGUE["all_reduce.ring"].schedule(RANKS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def kept(folder: Path) -> tuple[Kept, list[int], Path]:
    """Content that is on disk, how often it has been made since then, and its file."""
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return CONTENT

    kept = Kept("some", [], make)
    assert kept.content() == CONTENT
    (file,) = folder.glob("*.code")
    made.clear()
    return kept, made, file


def test_damage_at_any_byte_is_found(kept: tuple[Kept, list[int], Path], capfd: pytest.CaptureFixture[str]) -> None:
    of, made, file = kept
    whole = file.read_bytes()
    for k in range(len(whole)):
        for damaged in (whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :], whole[:k]):
            file.write_bytes(damaged)
            assert of.content() == CONTENT
            assert file.read_bytes() == whole, k
    assert made == [1] * 2 * len(whole)
    assert capfd.readouterr().err == f"unisono: {file} is damaged; it is made again\n" * 2 * len(whole)


def test_file_writable_by_others_is_ignored(
    kept: tuple[Kept, list[int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    of, made, file = kept
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert of.content() == CONTENT
        assert file.stat().st_mode & 0o777 == 0o644
    said = f"unisono: {file} can be written to by other users; it is not used\n"
    assert capfd.readouterr().err == 2 * said
    assert made == [1, 1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_used(kept: tuple[Kept, list[int], Path]) -> None:
    of, made, file = kept
    os.chown(file, 54321, -1)
    assert of.content() == CONTENT
    assert (made, file.stat().st_uid) == ([1], 0)


def same(one: Program, other: Program) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("program-*.code"))


def test_kept_programs_are_what_compilation_gives(folder: Path) -> None:
    """Later ranks read what the first one has kept: they make it no more, or there would be another file."""
    for number, lowering in enumerate((Lowering(), Lowering(zero_copy=True)), 1):
        wanted = compile_schedule(RING, lowering)
        assert same(program(RING, lowering, 0), wanted[0])
        before = [path.stat().st_ino for path in files(folder)]
        assert all(same(program(RING, lowering, rank), wanted[rank]) for rank in range(RANKS))
        assert [path.stat().st_ino for path in files(folder)] == before
        assert len(before) == number


def test_wrong_table_is_refused_and_not_kept(folder: Path) -> None:
    wrong = RING.replace(rows=RING.rows[:-1])
    for _ in range(2):
        with pytest.raises(AlgorithmError):
            program(wrong, Lowering(), 0)
    assert not files(folder)


def test_old_programs_go(folder: Path) -> None:
    """A program that changes its tables leaves no files for good."""
    program(RING, Lowering(), 0)
    (old,) = files(folder)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    program(CATALOGUE["all_gather.ring"].schedule(RANKS), Lowering(), 0)
    assert old not in files(folder)
    assert len(files(folder)) == 1
