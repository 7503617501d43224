"""Progress of a command: a bar on a terminal, once it takes long; nothing elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from unisono.engine.kernels import unit
from unisono.tools.cli.shared import printing

COUNT = (
    "import sys\n"
    "from unisono.tools.cli.shared.printing import progress\n"
    "with progress('counting [1] {2}', 4, after_s=0) as show:\n"
    "    show(3, 'the [last] {but} one')\n"
    "    sys.stdin.readline()\n"
    "print('the result')\n"
)
"""A program that is at work until a line comes."""


def seen_on_a_terminal(until: str) -> tuple[str, str]:
    """What the program writes on a terminal until it has written this, and then; and its standard output."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", COUNT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, env=environ
    ) as program:
        os.close(theirs)
        seen = ""
        with suppress(OSError):  # it has ended
            while until not in seen:
                seen += os.read(ours, 4096).decode()
            assert program.stdin is not None
            program.stdin.write(b"\n")
            program.stdin.flush()
            while more := os.read(ours, 4096).decode():
                seen += more
        os.close(ours)
        assert program.stdout is not None
        return seen, program.stdout.read().decode()


def test_a_terminal_has_a_bar_that_goes() -> None:
    seen, out = seen_on_a_terminal("the [last] {but} one")
    assert "counting [1] {2}" in seen
    assert "━" in seen
    assert seen.rstrip().endswith("\x1b[2K"), "the line is cleared at the end"
    assert out == "the result\n"


def test_a_pipe_has_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT], input="\n", capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("the result\n", "")


def test_commands_compile_first_where_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr("unisono.engine.host.warm_up", lambda: compiled.append("all"))
    printing.compile_first()
    assert compiled == ([] if unit("interpret.run").on_disk else ["all"])
    monkeypatch.setenv("UNISONO_CACHE_DIR", f"{tmp_path}")
    printing.compile_first()
    assert compiled[-1:] == ["all"]
    monkeypatch.setenv("UNISONO_CACHE_DIR", "/proc/nowhere")
    compiled.clear()
    printing.compile_first()
    assert compiled == [], "it could not be kept"
