"""Tries with MPI, in jobs of RANKS ranks. A try that ends its job is followed by a new job."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from unisono.base.errors import InternalError

from ..mpi import Mpi, start
from .attempts import RANKS, Try, worst
from .library import LOST
from .mpi_worker import BROKEN
from .situations import SITUATIONS

_START_S, _PATIENCE_S = 60.0, 5.0
"""How long a job may take to start, and a try before it counts as one that hangs."""


def try_mpi(mpi: Mpi, tries: Sequence[Try]) -> list[str]:
    """The outcome of each try. Those of SITUATIONS, which may leave the ranks apart, have a job of their own.

    A try that ends its job is made again in a new one, unless it was the first: it may have suffered from another.
    """
    outcomes: list[str] = []
    alone = next(k for k, one in enumerate(tries) if one.call in SITUATIONS)
    while (first := len(outcomes)) < len(tries):
        last = alone if first < alone else first + 1
        found = _run(mpi, first, last)
        outcomes += found[:-1] if len(found) > 1 and found[-1] in LOST else found
    return outcomes


def _run(mpi: Mpi, first: int, last: int) -> list[str]:
    """The outcomes of the tries from first up to last, or up to one at which the job ended."""
    with tempfile.TemporaryDirectory() as folder:
        worker = f"{__package__}.mpi_worker"
        process = start(mpi, RANKS, worker, folder, first, last, output=subprocess.DEVNULL)
        done, deadline = 0, time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            if (now := sum(path.stat().st_size for path in Path(folder).iterdir())) > done:
                done, deadline = now, time.monotonic() + _PATIENCE_S
        hangs = process.poll() is None
        if hangs:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        outcomes = _lines(folder)
        if len(outcomes) < last - first:
            outcomes.append("hangs" if hangs else "aborts")
        return outcomes


def _lines(folder: str) -> list[str]:
    """The outcomes that all ranks have written."""
    files = [Path(folder) / str(rank) for rank in range(RANKS)]
    written = [path.read_text().splitlines() if path.exists() else [] for path in files]
    for line in (line for lines in written for line in lines if line.startswith(BROKEN)):
        raise InternalError(line)
    return [worst(seen) for seen in zip(*written, strict=False)]
