"""What all commands share: streams that are closed or full, a folder that is gone, Ctrl-C. None ends in a traceback."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = "-m unisono"
LIST = f"{MODULE} explain"


def shell(line: str, **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run Python with these words and redirections by a shell."""
    command = ["sh", "-c", f"{sys.executable} {line}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **how)


@pytest.mark.parametrize("words", ["explain", "--version", "--help", "simulate all_reduce --hosts 2x2"])
def test_full_output(words: str) -> None:
    done = shell(f"{MODULE} {words} >/dev/full")
    assert done.stderr == "unisono: a read or write failed: No space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    done = shell(f"{LIST} {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert ("all_reduce" in done.stdout) == (" >&-" not in f" {closed}")


def test_closed_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as pipe:
        done = subprocess.run(
            [sys.executable, *LIST.split()], stdout=pipe, stderr=subprocess.PIPE, timeout=100, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_ascii_output() -> None:
    done = shell(f"{MODULE} draw all_reduce.ring", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 ???" in done.stdout


def test_deleted_working_directory(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    remove = f"-c 'import os; os.rmdir(os.getcwd())'; {sys.executable}"
    done = shell(f"{remove} {MODULE} explain all_reduce", cwd=tmp_path / "gone")
    assert done.stderr == "unisono: the working directory has been deleted: change to another one\n"
    assert done.returncode == 2


def test_interrupt_during_imports(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = shell(LIST, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
