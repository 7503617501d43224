"""Ranks of a program whose groups are watched, each a process of its own."""

import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.support.programs import Python

ONE_PIPE = "import os; os.dup2(1, 2); "  # on the line of what follows: tests name lines
HEAD = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
rank, size = int(sys.argv[1]), int(sys.argv[2])
if sys.argv[4] == "by a call":
    import unisono
    unisono.watch()
dist.init_process_group("gloo", sys.argv[3], rank=rank, world_size=size)
ones = torch.ones(4)
dist.all_reduce(ones)
"""
REPORT = """
except RuntimeError as error:
    print(type(error).__name__, isinstance(error, dist.DistBackendError), error, flush=True)
    time.sleep(1)
"""

UNTIL_ALL_HAVE = """
    told = [f"{sys.argv[3][7:]} told {each}" for each in range(size - 1)]
    open(told[rank], "w").close()
    while not all(map(os.path.exists, told)): time.sleep(0.01)
"""
"""Where all ranks but the last report an error: none ends before all have."""


class Job:
    """Ranks that run one program, each a process."""

    def __init__(self, python: Python, directory: Path) -> None:
        self._python, self._directory, self.ranks = python, directory, list[subprocess.Popen[str]]()

    def start(
        self, size: int, body: str, *, before: str = "", unwatched: int = -1, elsewhere: int = -1, **environment: str
    ) -> None:
        """Start the program: `before`, HEAD, body. unwatched, elsewhere: a rank not watched, on another host.

        The program calls `unisono.watch`, unless UNISONO_WATCH is in the environment, which takes a new Python.
        """
        program = self._directory / "program.py"
        program.write_text(ONE_PIPE + before + HEAD + textwrap.dedent(body))
        for rank in range(size):
            given = ({"UNISONO_HOST_ID": "another host"} if rank == elsewhere else {}) | environment
            watched = "by the variable" if "UNISONO_WATCH" in environment else "by a call"
            words = rank, size, f"file://{self._directory}/meeting", "not" if rank == unwatched else watched
            self.ranks.append(self._python(program, *words, **given))

    def output(self, rank: int) -> str:
        """All that a rank prints, once it has ended."""
        try:
            return self.ranks[rank].communicate(timeout=100)[0]
        except subprocess.TimeoutExpired:
            for one in self.ranks:
                one.kill()
            said = [one.communicate()[0] for one in self.ranks]
            pytest.fail(f"rank {rank} has not ended; what all ranks have printed: {said}")


def warning_of(rank: subprocess.Popen[str]) -> str:
    """The line in which this rank says for which rank it waits."""
    assert rank.stdout is not None
    for line in rank.stdout:
        if "has waited" in line:
            return line
    pytest.fail("it has ended without a warning")


DDP = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
def step():
    model(ones.unsqueeze(0)).sum().backward()
for _ in range(5): step()
time.sleep(0.3)
"""
