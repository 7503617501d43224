"""A job of Open MPI or MPICH that measures cells.

A rank is `python -m benchmarks.collectives.mpi_job FOLDER`. It reads cells from a socket, measures them on numpy arrays
and writes the samples back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from unisono.base.errors import PeerFailed

from ..mpi import Mpi, make_call, start
from ..turns import Rendezvous
from .protocol import Cell, Sample, measure, shapes


class MpiJob:
    """An MPI job of `ranks` ranks. Between measurements it waits at a socket and uses no processor."""

    def __init__(self, mpi: Mpi, ranks: int, folder: Path, timeout_s: float = 120.0) -> None:
        self.name = mpi.name
        folder = folder / f"{mpi.abi}-{ranks}"
        folder.mkdir()
        self._log = folder / "log"
        with socket.socket(socket.AF_UNIX) as door, self._log.open("wb") as log:
            door.bind(str(folder / "socket"))
            door.listen(ranks)
            door.settimeout(0.2)
            self._process = start(mpi, ranks, f"{__package__}.mpi_job", folder, output=log)
            self._lines: dict[int, Any] = {}
            try:
                self._accept(door, ranks, timeout_s)
            except BaseException:
                self.close()
                raise

    def _accept(self, door: socket.socket, ranks: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self._lines) < ranks:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._failed("it did not start")
            try:
                line, _ = door.accept()
            except TimeoutError:
                continue
            line.settimeout(timeout_s)
            with line:
                talk = line.makefile("rw")
            rank, self.version = json.loads(talk.readline())
            self._lines[rank] = talk

    def measure(self, cell: Cell) -> list[Sample]:
        """One sample per rank. Raises PeerFailed when the job has died or takes too long."""
        text = json.dumps(vars(cell)) + "\n"
        try:
            for line in self._lines.values():
                line.write(text)
                line.flush()
            return [Sample(**json.loads(line.readline())) for _, line in sorted(self._lines.items())]
        except (OSError, ValueError) as error:
            raise self._failed(f"{cell.op} of {cell.nbytes} bytes: {error}") from error

    def _failed(self, why: str) -> PeerFailed:
        tail = self._log.read_text(errors="replace")[-2000:].strip()
        return PeerFailed(0, f"{why}\n{tail}", 0, f"the {self.name} job")

    def close(self) -> None:
        """End the job: its ranks leave when their sockets are closed; those that do not are killed."""
        for line in self._lines.values():
            with contextlib.suppress(OSError):  # a rank may be gone already
                line.close()
        for last_word in (signal.SIGTERM, signal.SIGKILL):
            if not self._has_ended(within_s=5):
                os.killpg(self._process.pid, last_word)
        self._process.wait(5)

    def _has_ended(self, within_s: float) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def main(folder: Path) -> None:
    """Serve until the socket is closed."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, ranks = world.Get_rank(), world.Get_size()
    meet = Rendezvous(folder / "meet", rank, ranks)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(folder / "socket"))
        with line.makefile("rw") as talk:
            talk.write(json.dumps([rank, MPI.Get_library_version().strip()]) + "\n")
            talk.flush()
            for text in talk:
                cell = Cell(**json.loads(text))
                n_in, n_out = shapes(cell.op, cell.count, ranks)
                source = np.zeros(n_in, np.float32)
                target = np.zeros(n_out, np.float32) if n_out else source
                sample = measure(meet, cell, source, target, make_call(cell.op, source, target))
                talk.write(json.dumps(dataclasses.asdict(sample)) + "\n")
                talk.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
