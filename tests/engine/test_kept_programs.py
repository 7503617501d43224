"""Programs of large groups are made once per installation."""

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from unisono.base.errors import AlgorithmError
from unisono.engine.compile import kept_programs
from unisono.engine.compile.compile_schedule import compile_schedule
from unisono.engine.compile.program import Lowering, Program
from unisono.schedule.algorithms import CATALOGUE

RANKS = 16
RING = CATALOGUE["all_reduce.ring"].schedule(RANKS)


def same(one: Program, other: Program) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))  # type: ignore[arg-type]  # fields


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    return tmp_path


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("program-*.code"))


def test_kept_programs_are_what_compilation_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank reads what the first one has kept: it neither compiles nor proves."""
    for lowering in (Lowering(), Lowering(zero_copy=True)):
        wanted = compile_schedule(RING, lowering)
        assert same(kept_programs.program(RING, lowering, 0), wanted[0])
        with monkeypatch.context() as patch:
            patch.delattr(kept_programs, "_proved")
            assert all(same(kept_programs.program(RING, lowering, rank), wanted[rank]) for rank in range(RANKS))
    assert len(kept(folder)) == 2


def test_programs_of_small_groups_are_not_kept(folder: Path) -> None:
    kept_programs.program(CATALOGUE["all_reduce.ring"].schedule(8), Lowering(), 3)
    assert not kept(folder)


def test_damaged_file_is_made_again(folder: Path) -> None:
    first = kept_programs.program(RING, Lowering(), 5)
    (path,) = kept(folder)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert same(kept_programs.program(RING, Lowering(), 5), first)
    assert pickle.loads(pickle.loads(path.read_bytes()[16:])[5]).name == RING.name  # noqa: S301


def test_wrong_table_is_refused_and_not_kept(folder: Path) -> None:
    wrong = RING.replace(rows=RING.rows[:-1])
    for _ in range(2):
        with pytest.raises(AlgorithmError):
            kept_programs.program(wrong, Lowering(), 0)
    assert not kept(folder)


def test_old_programs_go(folder: Path) -> None:
    """A program that changes its tables leaves no files for good."""
    kept_programs.program(RING, Lowering(), 0)
    (old,) = kept(folder)
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    kept_programs.program(CATALOGUE["all_gather.ring"].schedule(RANKS), Lowering(), 0)
    assert old not in kept(folder)
    assert len(kept(folder)) == 1
