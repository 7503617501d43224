"""What all commands share: streams that are closed or full, a folder that is gone, Ctrl-C. None ends in a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = "unisono: a read or write failed: No space left on device\n"
GONE = "unisono: the working directory has been deleted: change to another one\n"
ENDS = [
    ("U explain >/dev/full", 1, FULL, ""),
    ("U --version >/dev/full", 1, FULL, ""),
    ("U --help >/dev/full", 1, FULL, ""),
    ("U simulate all_reduce --hosts 2x2 >/dev/full", 1, FULL, ""),
    ("U explain >&-", 0, "", ""),
    ("U explain 2>&-", 0, "", "all_reduce"),
    ("U explain <&-", 0, "", "all_reduce"),
    ("U explain <&- >&- 2>&-", 0, "", ""),
    ("PYTHONIOENCODING=ascii U draw all_reduce.ring", 0, "", "0 ???"),
    ("mkdir gone; cd gone; rmdir ../gone; U explain all_reduce", 2, GONE, ""),
    ("echo raise KeyboardInterrupt >typer.py; PYTHONPATH=. U explain", 130, "", ""),
]
"""What a shell runs, the exit code, and what is in its two streams."""


@pytest.mark.parametrize(("line", "code", "stderr", "stdout"), ENDS)
def test_commands_end_well(line: str, code: int, stderr: str, stdout: str, tmp_path: Path) -> None:
    words = ["sh", "-c", line.replace("U ", f"{sys.executable} -m unisono ")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (code, stderr)
    assert stdout in done.stdout
    assert bool(stdout) == bool(done.stdout)


def test_closed_pipe() -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "unisono", "explain"]
    with os.fdopen(write) as pipe:
        done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
