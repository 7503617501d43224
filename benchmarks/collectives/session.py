"""A whole benchmark: in each round, at each size, the contenders take turns on the same machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from unisono.base.errors import PeerFailed
from unisono.schedule import BLOCKED

from ..mpi import find
from ..reports import GLOO, MPICH, OPEN_MPI, OURS, SHARED
from .figures import Record, slowest
from .goals import GOAL_SIZES
from .mpi_job import MpiJob
from .protocol import Cell
from .ranks import Ranks

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

_KI, _MI = 1 << 10, 1 << 20
_SIZES = (8, 64, 512, 4 * _KI, 16 * _KI, 64 * _KI, 256 * _KI, _MI, 4 * _MI, 16 * _MI, 64 * _MI)
_QUICK_SIZES = (8, 4 * _KI, 64 * _KI, _MI, 16 * _MI, 64 * _MI)
_HALF_SIZES = (8, 64 * _KI, _MI, 16 * _MI, 64 * _MI)


@dataclass(frozen=True)
class Plan:
    """What to measure. sizes: bytes, for all ops; without them each op has its own. mpi: Open MPI and MPICH too."""

    ops: Collection[str] = OPS
    sizes: Collection[int] = ()
    quick: bool = False
    mpi: bool = True
    deadline_s: float = 660.0

    @property
    def rounds(self) -> int:
        """How often each contender has its turn."""
        return 1 if self.quick else 3

    def cells(self, ranks: int) -> list[Cell]:
        """Every cell of one round; those to be compared stand side by side."""
        seconds = 0.06 if self.quick else 0.35
        cells = []
        for op in OPS:
            if op not in self.ops:
                continue
            own = (_QUICK_SIZES if self.quick else _SIZES) if op == "all_reduce" else tuple(GOAL_SIZES)
            for nbytes in self.sizes or own:
                names = [OURS, GLOO, SHARED, OPEN_MPI, MPICH]
                cells += [Cell(name, op, "float32", nbytes, seconds) for name in names]
                if op == "all_reduce":
                    cells += [Cell(name, name, "float32", nbytes, seconds) for name in ("memcpy", "floor")]
                    if nbytes in (self.sizes or _HALF_SIZES):
                        cells.append(Cell(OURS, op, "bfloat16", nbytes, seconds))
        return [cell for cell in cells if cell.op not in BLOCKED or cell.count % ranks == 0]


@dataclass
class Session:
    """Carries out a plan. `run` adds to `records` and `notes`."""

    plan: Plan
    folder: Path
    advance: Callable[[str], None]
    """Called before each measurement, with what comes next."""
    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.plan.deadline_s

    def run(self, ranks: int) -> None:
        """Measure every cell of the plan on this many ranks, round by round, until the deadline."""
        processors = len(os.sched_getaffinity(0))
        if ranks > processors:
            self.notes.append(
                f"{ranks} ranks share {processors} processors: a yardstick needs no peer, so each of its ranks has "
                "a processor to itself while it is timed, and % memcpy and % floor come out low"
            )
        with Ranks(ranks, self.folder) as world, self._mpi(ranks) as jobs:
            for turn in range(self.plan.rounds):
                for cell in self.plan.cells(ranks):
                    if time.monotonic() > self._end:
                        self.notes.append(f"the time was over in round {turn + 1} on {ranks} ranks")
                        return
                    self.advance(f"{ranks} ranks · {cell.op} · {cell.contender}")
                    if cell.contender not in (OPEN_MPI, MPICH):
                        self.records.append(slowest(cell, turn, world.measure(cell)))
                    elif cell.contender in jobs:
                        self._measure_mpi(jobs, cell, turn)

    def _measure_mpi(self, jobs: dict[str, MpiJob], cell: Cell, turn: int) -> None:
        """A job that fails is left out from then on, and a note says so; the others continue."""
        try:
            self.records.append(slowest(cell, turn, jobs[cell.contender].measure(cell)))
        except PeerFailed as error:
            jobs.pop(cell.contender).close()
            self.notes.append(str(error))

    @contextlib.contextmanager
    def _mpi(self, ranks: int) -> Iterator[dict[str, MpiJob]]:
        jobs: dict[str, MpiJob] = {}
        try:
            for name in (OPEN_MPI, MPICH) if self.plan.mpi else ():
                job = self._start(name, ranks)
                if job:
                    jobs[name] = job
            yield jobs
        finally:
            for job in jobs.values():
                job.close()

    def _start(self, name: str, ranks: int) -> MpiJob | None:
        if name == MPICH and ranks > len(os.sched_getaffinity(0)):
            self.notes.append(f"{name} on {ranks} ranks is left out: it spins without yielding its processor")
            return None
        mpi = find(name)
        if isinstance(mpi, str):
            self.notes.append(f"{name} is left out: {mpi}")
            return None
        try:
            return MpiJob(mpi, ranks, self.folder)
        except PeerFailed as error:
            self.notes.append(f"{name} on {ranks} ranks is left out: {error}")
            return None
