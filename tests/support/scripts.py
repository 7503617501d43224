"""Scripts that share one process, see `script_runner`: starting torch and ranks takes longer than most of them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile


class Scripts:
    """`scripts.run(path)`: what a script prints. Its process starts with the first, and again after one that hangs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._printed = TemporaryFile("a+b")  # noqa: SIM115  `close` closes it
        self._read, self._answers = 0, -1

    def run(self, script: Path, most_s: float = 100.0) -> str:
        """What the script prints. AssertionError, with its traceback: it has failed, or takes too long."""
        if self._process is None:
            self._answers, theirs = os.pipe()
            command = [sys.executable, "-m", "tests.support.script_runner", str(theirs)]
            root = Path(__file__).parents[2]
            self._process = subprocess.Popen(
                command, cwd=root, stdin=subprocess.PIPE, stdout=self._printed, pass_fds=[theirs]
            )
            os.close(theirs)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{script}\n".encode())
        self._process.stdin.flush()
        answer = self._answer(most_s)
        if answer:
            self._end()  # the next script finds nothing of this one
        assert not answer, answer
        self._printed.seek(self._read)
        printed = self._printed.read()
        self._read += len(printed)
        return printed.decode()

    def _answer(self, most_s: float) -> str:
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._answers], [], [], most_s)[0]:
                return f"the script has not ended after {most_s} s"
            part = os.read(self._answers, 1 << 16)
            if not part:
                return "the process has ended within the script"
            line += part
        return str(json.loads(line))

    def close(self) -> None:
        """End the process, and its ranks with it."""
        self._end()
        self._printed.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            os.close(self._answers)
            self._process = None
            self._read = os.fstat(self._printed.fileno()).st_size
