"""Programs in processes of their own, as launchers start them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Python = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def processes() -> Iterator[Python]:
    """start("-c", text, RANK=0): Python with these words and variables, and with pipes. All are killed in the end."""
    with ExitStack() as ended:

        def start(*words: object, **variables: object) -> subprocess.Popen[str]:
            given, pipe = {name: str(value) for name, value in variables.items()}, subprocess.PIPE
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **given}
            command = [sys.executable, *map(str, words)]
            process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
            ended.callback(process.communicate)
            ended.callback(process.kill)
            return process

        yield start


def run_python(*words: object, check: bool = False, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with these words to its end. how: as in `subprocess.run`."""
    how = {"timeout": 100, **how}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=check, **how)


def place(rank: int, size: int, port: int) -> dict[str, object]:
    """What a launcher tells a rank."""
    return {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
