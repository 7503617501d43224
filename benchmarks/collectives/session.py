"""A whole benchmark: in each round, at each size, the contenders take turns on the same machine.

unisono, Gloo and the memcpy are measured in the same ranks. Each MPI has its own.
"""

import contextlib
import functools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import unisono
from unisono.base.errors import PeerFailed, WaitTimeout
from unisono.schedule import BLOCKED
from unisono.tools.cli.shared.timed_calls import start_gloo

from ..mpi import WHEELS, make_call, meet, start_jobs
from ..runs import DEEPSPEED, GLOO, MEMCPY, OURS, SHARED, Table, of_times
from ..turns import Rendezvous
from .protocol import Cell, Sample, measure, shapes

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")

_KI, _MI = 1 << 10, 1 << 20
_SIZES = (8, 64, 512, 4 * _KI, 16 * _KI, 64 * _KI, 256 * _KI, _MI, 4 * _MI, 16 * _MI, 64 * _MI)
_QUICK_SIZES = (8, 4 * _KI, 64 * _KI, _MI, 16 * _MI, 64 * _MI)
_HALF_SIZES = (8, 64 * _KI, _MI, 16 * _MI, 64 * _MI)
_LONG_SIZES = (64 * _KI, _MI, 16 * _MI)
"""Of the calls other than all_reduce."""


@dataclass(frozen=True)
class Plan:
    """What to measure. sizes: bytes, for all ops; without them each op has its own. mpi: the MPIs and DeepSpeed too."""

    ops: Collection[str] = OPS
    sizes: Collection[int] = ()
    quick: bool = False
    mpi: bool = True
    deadline_s: float = 660.0

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3

    def cells(self, ranks: int) -> list[Cell]:
        """Every cell of one round; those to be compared stand side by side."""
        seconds = 0.06 if self.quick else 0.35
        cells = []
        for op in OPS:
            if op not in self.ops:
                continue
            own = (_QUICK_SIZES if self.quick else _SIZES) if op == "all_reduce" else _LONG_SIZES
            for nbytes in self.sizes or own:
                names = [OURS, GLOO, SHARED, *WHEELS]
                cells += [Cell(name, op, "float32", nbytes, seconds) for name in names]
                if op == "all_reduce":
                    cells.append(Cell(DEEPSPEED, op, "float32", nbytes, seconds))
                    cells.append(Cell(MEMCPY, MEMCPY, "float32", nbytes, seconds))
                    if nbytes in (self.sizes or _HALF_SIZES):
                        cells.append(Cell(OURS, op, "bfloat16", nbytes, seconds))
        return [cell for cell in cells if cell.op not in BLOCKED or cell.count % ranks == 0]


class Session:
    """Carries out a plan. `run` adds to all of these. wrong: elements of results."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.notes, self.wrong = plan, list[str](), 0
        self._times: dict[tuple[str, str, int, int], dict[str, list[float]]] = {}
        self._end = time.monotonic() + plan.deadline_s

    def run(self, ranks: int) -> None:
        """Measure every cell of the plan on this many ranks, round by round, until the deadline."""
        processors = len(os.sched_getaffinity(0))
        if ranks > processors:
            self.notes.append(
                f"{ranks} ranks share {processors} processors. A memcpy waits for no other rank, so each of its ranks "
                "has a processor to itself while it is timed."
            )
        with contextlib.ExitStack() as ends:
            folder = ends.enter_context(tempfile.TemporaryDirectory())
            world = ends.enter_context(unisono.world(ranks, timeout_s=300))
            jobs = start_jobs(ranks, ends, self.notes) if self.plan.mpi else {}
            deepspeed = self.plan.mpi and self._has_deepspeed(ranks)
            for turn in range(self.plan.rounds):
                print(f"{ranks} ranks, round {turn + 1} of {self.plan.rounds}", file=sys.stderr)
                for cell in self.plan.cells(ranks):
                    if time.monotonic() > self._end:
                        self.notes.append(f"the time was over in round {turn + 1} on {ranks} ranks")
                        return
                    if cell.contender == DEEPSPEED and not deepspeed:
                        continue
                    if cell.contender not in WHEELS:
                        samples: list[Sample] = world.run(_measure_ours, cell, folder)
                    elif cell.contender in jobs:
                        try:
                            samples = jobs[cell.contender].run(_measure_mpi, cell)
                        except (PeerFailed, WaitTimeout) as error:  # it is left out from now on
                            jobs.pop(cell.contender).close()
                            self.notes.append(f"{cell.contender}: {error}")
                            continue
                    else:
                        continue
                    self.add(cell, samples)

    def add(self, cell: Cell, samples: Sequence[Sample]) -> None:
        """Add what the ranks saw of a cell in one round. An iteration takes as long as its slowest rank."""
        call = "all_reduce" if cell.op == MEMCPY else cell.op  # it is there to be compared with
        times = self._times.setdefault((call, cell.dtype, len(samples), cell.nbytes), {})
        times.setdefault(cell.contender, []).extend(map(max, *(sample.times for sample in samples)))
        self.wrong += sum(sample.wrong for sample in samples)

    def table(self) -> Table:
        """All rounds of each cell together."""
        return of_times("calls", ["call", "dtype", "ranks", "bytes"], self._times)

    def _has_deepspeed(self, ranks: int) -> bool:
        """Whether its operation can be had; else a note says why not."""
        try:
            _deepspeed(ranks)
        except (ImportError, OSError, RuntimeError) as error:
            self.notes.append(f"{DEEPSPEED} on {ranks} ranks is left out: {error}".partition("\n")[0])
            return False
        return True


def _measure_ours(cell: Cell, folder: str) -> Sample:
    """Measure a cell on this rank of a world of ours: OURS, SHARED, GLOO or a memcpy."""
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    torch.set_num_threads(1)
    kind = getattr(torch, cell.dtype)
    n_in, n_out = shapes(cell.op, cell.count, ranks)
    if cell.contender == SHARED:
        x, y = _shared(0, cell, n_in, kind), _shared(1, cell, n_out, kind)
    else:
        x, y = torch.zeros(n_in, dtype=kind), torch.zeros(n_out, dtype=kind)
    source, target = _bits(x), _bits(y)
    return measure(_meet(folder, rank, ranks), cell, source, target if n_out else source, _call(cell, x, y, folder))


def _measure_mpi(cell: Cell) -> Sample:
    """Measure a cell on this rank of an MPI, on numpy arrays."""
    n_in, n_out = shapes(cell.op, cell.count, meet().ranks)
    source = np.zeros(n_in, np.float32)
    target = np.zeros(n_out, np.float32) if n_out else source
    return measure(meet(), cell, source, target, make_call(cell.op, source, target))


def _call(cell: Cell, x: torch.Tensor, y: torch.Tensor, folder: str) -> Callable[[], object]:
    if cell.contender == GLOO:
        start_gloo(folder)
    if cell.contender == DEEPSPEED:
        ranks = unisono.get_world_size()
        _deepspeed(ranks).initialize(ranks, unisono.get_rank())
        return lambda: torch.ops.deepspeed.inference_all_reduce_(x)
    library: Any = dist if cell.contender == GLOO else unisono
    all_gather = getattr(library, "all_gather_single", None) or library.all_gather_into_tensor
    reduce_scatter = getattr(library, "reduce_scatter_single", None) or library.reduce_scatter_tensor
    return {
        "all_reduce": lambda: library.all_reduce(x),
        "broadcast": lambda: library.broadcast(x, 0),
        "all_gather": lambda: all_gather(y, x),
        "reduce_scatter": lambda: reduce_scatter(y, x),
        "all_to_all": lambda: library.all_to_all_single(y, x),
        MEMCPY: lambda: y.copy_(x),
    }[cell.op]


@functools.cache
def _deepspeed(ranks: int) -> Any:
    """The operation in shared memory that DeepSpeed has for inference. Ninja and g++ compile it, the first time."""
    if ranks > len(os.sched_getaffinity(0)):
        raise OSError("its ranks spin without yielding their processors")
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": f"{ranks}", "MASTER_PORT": f"{os.getppid()}"}
    from deepspeed.ops.op_builder import ShareMemCommBuilder

    os.environ["PATH"] += f":{Path(sys.executable).parent}"  # where Ninja's wheel puts it
    return ShareMemCommBuilder().load()


def _bits(tensor: torch.Tensor) -> Any:
    return tensor.numpy() if tensor.dtype == torch.float32 else tensor.view(torch.uint16).numpy()


@functools.cache
def _meet(folder: str, rank: int, ranks: int) -> Rendezvous:
    return Rendezvous(Path(folder) / f"ranks-{ranks}", rank, ranks)


_heap: dict[int, torch.Tensor] = {}


def _shared(which: int, cell: Cell, count: int, kind: torch.dtype) -> torch.Tensor:
    """`count` elements of one of two shared buffers, which grow: every rank makes the same ones in the same order."""
    if which not in _heap or _heap[which].nbytes < cell.nbytes:
        _heap[which] = unisono.empty(cell.nbytes, dtype=torch.uint8)
    return _heap[which][: count * kind.itemsize].view(kind)
