"""Programs in processes of their own, as launchers start them."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Python = Callable[..., "subprocess.Popen[str]"]

_FIRST, _PER_WORKER, _WORKERS = 10_000, 1_000, 16
"""Below the ports that the system gives to connections, so that none of them takes one before the job listens."""


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


def free_port() -> int:
    """A port of this host that no other process of pytest picks, and on which nothing listens now."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    first = _FIRST + worker * _PER_WORKER
    while True:
        port = random.randrange(first, first + _PER_WORKER)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
