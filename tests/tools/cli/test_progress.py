"""Progress of a command: a bar on a terminal, once it takes long; nothing elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unisono
from unisono.engine.kernels import unit
from unisono.tools.cli import app
from unisono.tools.cli.shared import printing
from unisono.tools.cli.shared.printing import progress

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


def test_what_is_over_soon_has_no_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    before = threading.active_count()
    with progress("counting", 4, after_s=1000) as show:
        show(4, "the last")
    assert "counting" not in capsys.readouterr().err
    assert threading.active_count() == before


def test_an_error_ends_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), progress("counting", after_s=1000):
        raise ZeroDivisionError
    assert threading.active_count() == before


class CompiledFirst(Exception):
    """Compiling has begun."""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("bench", ["bench", "--ranks", "2"]),
        ("run", ["run", "script.py"]),
        ("tune", ["tune", "--anyway"]),
    ],
)
def test_who_starts_ranks_compiles_before(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def compiling_begins() -> None:
        raise CompiledFirst

    monkeypatch.setattr(unisono, "world", None)
    monkeypatch.setattr(f"unisono.tools.cli.{module}.compile_first", compiling_begins)
    if module == "tune":
        monkeypatch.setattr("unisono.tools.cli.tune.processors", lambda: 2)
        monkeypatch.setenv("UNISONO_MEASURED", "figures.json")
    assert isinstance(CliRunner().invoke(app, arguments).exception, CompiledFirst)


@pytest.mark.parametrize(
    ("module", "arguments", "titles"),
    [
        (
            "draw",
            ["draw", "all_reduce.ring", "--film", "-o", "film.svg"],
            ["making the table", "drawing all_reduce.ring", "proving all_reduce.ring"],
        ),
        ("explain", ["explain", "all_reduce.ring"], ["proving all_reduce.ring for 4 ranks"]),
        ("explain", ["explain", "all_reduce", "--hosts", "2x2"], ["explaining 4 ranks on 2 hosts (2x2)"]),
        ("simulate", ["simulate", "broadcast", "--hosts", "2x1"], ["simulate, 2 ranks"]),
        ("doctor", ["doctor"], ["doctor: looking at the machine"]),
    ],
)
def test_work_that_may_take_long_has_a_title(
    module: str, arguments: list[str], titles: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    @contextmanager
    def recorded(title: str, total: int | None = None) -> Iterator[Callable[[int, str], None]]:
        seen.append(title)
        done_before = []
        yield lambda done, _comment: done_before.append(done)
        assert done_before == sorted(done_before)
        assert not done_before or max(done_before) <= (total or 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"unisono.tools.cli.{module}.progress", recorded)
    assert CliRunner().invoke(app, arguments).exit_code in (0, 1)
    assert seen == titles


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
