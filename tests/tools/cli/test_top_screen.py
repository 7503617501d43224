"""`unisono top` on a terminal: sizes, Ctrl-C, and a job that ends. And what commands compile first."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.observe.test_look import looping, running
from tests.support.waiting import until
from unisono.engine.kernels import unit
from unisono.tools.cli.shared import printing


class Screen:
    """A terminal in which `unisono top` runs."""

    def __init__(self, pid: int) -> None:
        self.master, slave = pty.openpty()
        self.resize(40, 120)
        words = [
            "setsid",
            "--ctty",
            sys.executable,
            "-m",
            "unisono",
            "top",
            str(pid),
        ]  # so that it hears of another size
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environ["TERM"] = "xterm-256color"
        self.process = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, env=environ)
        os.close(slave)
        os.set_blocking(self.master, False)
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        """Give the window another size; its program hears of that."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read(self) -> str:
        """All that has been shown."""
        try:
            while data := os.read(self.master, 1 << 16):
                self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        except OSError:  # nothing more now, or the program has ended
            pass
        return self.seen

    def shows(self, *words: str) -> None:
        """Wait until all this is shown."""
        until(lambda: all(word in self.read() for word in words), 60.0)

    def width(self) -> int:
        """How wide the last lines are: each fills the window."""
        return max(map(len, self.read().replace("\r", "").split("\n")[-4:-1]), default=0)

    def ends(self) -> int:
        """Wait for the end of the program; its exit code."""
        until(lambda: bool(self.read() or True) and self.process.poll() is not None, 60.0)
        return int(self.process.returncode)


@contextmanager
def screen(pid: int) -> Iterator[Screen]:
    made = Screen(pid)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait()
        os.close(made.master)


def test_window_may_change_and_ctrl_c_leaves(tmp_path: Path) -> None:
    with running(looping, tmp_path) as (_, pids), screen(pids[0]) as top:
        top.shows("calls/s", str(pids[3]), "ranks 0, 2, 3 have waited")
        until(lambda: top.width() == 120, 60.0)
        top.resize(30, 90)
        until(lambda: top.width() == 90, 60.0)
        os.write(top.master, b"\x03")
        assert top.ends() == 0


def test_screen_ends_with_its_job(tmp_path: Path) -> None:
    with running(looping, tmp_path) as (_, pids), screen(pids[0]) as top:
        top.shows("calls/s")
        os.kill(pids[3], signal.SIGKILL)
        (tmp_path / "go").touch()  # rank 1 ends its loop, and hears of it
        top.shows("all ranks have ended")
        assert top.ends() == 0
        assert str(pids[3]) in top.read()


def test_commands_compile_what_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr("unisono.engine.rank.warm_up", lambda: compiled.append("all"))
    printing.compile_first()
    assert compiled == ([] if unit("interpret.run").on_disk else ["all"])
    monkeypatch.setenv("UNISONO_CACHE_DIR", f"{tmp_path}")
    printing.compile_first()
    assert compiled[-1:] == ["all"]
    monkeypatch.setenv("UNISONO_CACHE_DIR", "/proc/nowhere")
    compiled.clear()
    printing.compile_first()
    assert compiled == [], "it could not be kept"
