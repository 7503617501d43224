"""`unisono top` on a terminal: sizes, Ctrl-C, and a job that ends."""

import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tests.observe.test_look import looping, running
from tests.support.waiting import until


class Screen(AbstractContextManager["Screen"]):
    """A terminal in which `unisono top` runs."""

    def __init__(self, pid: int) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(self.master, (40, 120))
        command = ["setsid", "--ctty", sys.executable, "-m", "unisono", "top", str(pid)]  # it is told of another size
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environ["TERM"] = "xterm-256color"
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environ)
        os.close(slave)
        os.set_blocking(self.master, False)
        self.seen = ""

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until this is true of what has been shown."""

        def read() -> bool:
            with suppress(OSError):  # nothing more now, or the program has ended
                while data := os.read(self.master, 1 << 16):
                    self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
            return condition()

        until(read)

    def shows(self, *words: str) -> None:
        self.wait(lambda: all(word in self.seen for word in words))

    def fills(self, columns: int) -> None:
        """Until the last lines fill the window."""
        self.wait(lambda: max(map(len, self.seen.replace("\r", "").split("\n")[-4:-1]), default=0) == columns)


def test_screen_fits_its_window_and_ends(tmp_path: Path) -> None:
    """Another one ends by Ctrl-C."""
    with running(looping, tmp_path) as pids, Screen(pids[0]) as top, Screen(pids[0]) as other:
        top.shows("calls/s", str(pids[3]), "ranks 0, 2, 3 have waited")
        top.fills(120)
        termios.tcsetwinsize(top.master, (30, 90))
        top.fills(90)
        other.shows("calls/s")
        os.write(other.master, b"\x03")
        other.wait(lambda: other.process.poll() == 0)
        os.kill(pids[3], signal.SIGKILL)
        (tmp_path / "go").touch()  # rank 1 ends its loop, and hears of it
        top.shows("all ranks have ended")
        top.wait(lambda: top.process.poll() == 0)
        assert str(pids[3]) in top.seen
