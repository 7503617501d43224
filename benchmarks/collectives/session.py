"""A whole benchmark: in each round, at each size, the contenders take turns on the same machine.

unisono, Gloo and the memcpy are measured in the same ranks. Each MPI has its own.
"""

import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import unisono
from unisono.base.errors import PeerFailed, WaitTimeout
from unisono.base.units import format_seconds
from unisono.schedule import BLOCKED

from ..mpi import WHEELS, MpiJob, make_call, meet, start_jobs
from ..ranks import Groups, Place, Ranks
from ..runs import GLOO, MEMCPY, OURS, SHARED, Table, of_times
from ..runs import Cell as Key
from .protocol import Cell, Sample, measure, seconds, shapes

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

_KI, _MI = 1 << 10, 1 << 20
_SIZES = (8, 512, 4 * _KI, 16 * _KI, 64 * _KI, 256 * _KI, _MI, 4 * _MI, 16 * _MI, 64 * _MI)
_BFLOAT16_SIZES = (8, 64 * _KI, _MI, 16 * _MI, 64 * _MI)
_OTHER_SIZES = (64 * _KI, 16 * _MI)
"""Of the calls other than all_reduce."""
_SIZES_OVER_HOSTS = (8, 64 * _KI, _MI, 16 * _MI)
_SIZES_LATE = (8, 256 * _KI)

_LATE = (("sleeping", 0.5e-3), ("sleeping", 3e-3), ("sleeping", 20e-3), ("computing", 20e-3))
"""How the late rank passes its time, and for how many seconds."""


@dataclass(frozen=True)
class Plan:
    """What to measure. sizes: bytes, for all ops; without them each op has its own. seconds: of each cell and round.

    late: calls in which one rank is late. mpi: the MPIs, too.
    """

    ops: Collection[str] = OPS
    sizes: Collection[int] = ()
    late: bool = False
    mpi: bool = True
    seconds: float = 0.2
    rounds: int = 3

    def cells(self, place: Place) -> list[Cell]:
        """Every cell of one round; those to be compared stand side by side."""
        ranks, several = place.hosts.ranks, bool(place.rate)
        ways = _LATE if self.late else (None,)
        cells = []
        for op in self.ops:
            own = _SIZES_LATE if self.late else _SIZES_OVER_HOSTS if several else _SIZES
            for nbytes in self.sizes or (own if op == "all_reduce" else _OTHER_SIZES[several:]):
                for late in ways:
                    names = [OURS, GLOO, *([] if several or late else [SHARED]), *WHEELS]
                    cells += [Cell(name, op, "float32", nbytes, self.seconds, late, place.busy) for name in names]
                    if op == "all_reduce" and not several:
                        cells.append(Cell(MEMCPY, MEMCPY, "float32", nbytes, self.seconds, late, place.busy))
                bfloat16 = nbytes in (self.sizes or _BFLOAT16_SIZES)
                if op == "all_reduce" and bfloat16 and not several and not self.late:
                    cells.append(Cell(OURS, op, "bfloat16", nbytes, self.seconds, None, place.busy))
        return [cell for cell in cells if cell.op not in BLOCKED or cell.count % ranks == 0]


class Session:
    """Carries out a plan. `run` adds to all of these. wrong: elements of results."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.notes, self.wrong = plan, list[str](), 0
        self._keys: list[str] = []
        self._times: dict[tuple[Key, ...], dict[str, list[float]]] = {}

    def run(self, place: Place) -> None:
        """Measure every cell of the plan at this place, round by round."""
        with contextlib.ExitStack() as ends:
            ranks = Ranks(place, ends)
            jobs = start_jobs(place, ranks.names, ends, self.notes) if self.plan.mpi else {}
            for turn in range(self.plan.rounds):
                print(f"{place.labels}, round {turn + 1} of {self.plan.rounds}", file=sys.stderr)
                for cell in self.plan.cells(place):
                    if samples := self._measure(cell, ranks, jobs):
                        self.add(place, cell, samples)

    def _measure(self, cell: Cell, ranks: Ranks, jobs: dict[str, MpiJob]) -> list[Sample]:
        if cell.contender not in WHEELS:
            return ranks.run(_measure_here, cell)
        try:
            return jobs[cell.contender].run(_measure_mpi, cell) if cell.contender in jobs else []
        except (PeerFailed, WaitTimeout) as error:  # it is left out from now on
            jobs.pop(cell.contender).close()
            self.notes.append(f"{cell.contender}: {error}")
            return []

    def add(self, place: Place, cell: Cell, samples: Sequence[Sample]) -> None:
        """Add what the ranks saw of a cell in one round."""
        labels: dict[str, Key] = {"call": "all_reduce" if cell.op == MEMCPY else cell.op, "dtype": cell.dtype}
        labels |= place.labels
        if cell.late:
            labels["late rank"] = f"{format_seconds(cell.late[1])} late, {cell.late[0]}"
        self._keys = [*labels, "bytes"]
        times = self._times.setdefault((*labels.values(), cell.nbytes), {})
        times.setdefault(cell.contender, []).extend(seconds(cell, samples))
        self.wrong += sum(sample.wrong for sample in samples)

    def table(self) -> Table:
        """All rounds of each cell together."""
        return of_times("calls", self._keys, self._times)


def _measure_here(groups: Groups, cell: Cell) -> Sample:
    """Measure a cell on this rank of a world of ours: OURS, SHARED, GLOO or a memcpy."""
    kind = getattr(torch, cell.dtype)
    n_in, n_out = shapes(cell.op, cell.count, groups.meet.ranks)
    if cell.contender == SHARED:
        x, y = _shared(0, cell, n_in, kind), _shared(1, cell, n_out, kind)
    else:
        x, y = torch.zeros(n_in, dtype=kind), torch.zeros(n_out, dtype=kind)
    source, target = _bits(x), _bits(y)
    call = _call(cell, x, y, groups.contenders[GLOO])
    return measure(groups.meet, cell, source, target if n_out else source, call)


def _measure_mpi(cell: Cell) -> Sample:
    n_in, n_out = shapes(cell.op, cell.count, meet().ranks)
    source = np.zeros(n_in, np.float32)
    target = np.zeros(n_out, np.float32) if n_out else source
    return measure(meet(), cell, source, target, make_call(cell.op, source, target))


def _call(cell: Cell, x: torch.Tensor, y: torch.Tensor, gloo: Any) -> Callable[[], object]:
    library: Any = dist if cell.contender == GLOO else unisono
    group = {"group": gloo} if cell.contender == GLOO else {}
    return {
        "all_reduce": lambda: library.all_reduce(x, **group),
        "broadcast": lambda: library.broadcast(x, 0, **group),
        "all_gather": lambda: library.all_gather_single(y, x, **group),
        "reduce_scatter": lambda: library.reduce_scatter_single(y, x, **group),
        "all_to_all": lambda: library.all_to_all_single(y, x, **group),
        MEMCPY: lambda: y.copy_(x),
    }[cell.op]


def _bits(tensor: torch.Tensor) -> Any:
    return tensor.numpy() if tensor.dtype == torch.float32 else tensor.view(torch.uint16).numpy()


_heap: dict[int, torch.Tensor] = {}


def _shared(which: int, cell: Cell, count: int, kind: torch.dtype) -> torch.Tensor:
    """`count` elements of one of two shared buffers, which grow: every rank makes the same ones in the same order."""
    if which not in _heap or _heap[which].nbytes < cell.nbytes:
        _heap[which] = unisono.empty(cell.nbytes, dtype=torch.uint8)
    return _heap[which][: count * kind.itemsize].view(kind)
