"""unisono, Gloo and the yardsticks, measured in the same ranks, so that they take turns on the same processors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import unisono
from unisono.tools.cli.shared.timed_calls import start_gloo

from ..reports import GLOO, SHARED
from ..turns import Rendezvous
from .protocol import Cell, Sample, measure, shapes


class Ranks:
    """A set of ranks that measures cells of OURS, SHARED, GLOO and the yardsticks. Use it in a `with` block."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self._folder = str(folder)
        self._world = unisono.world(ranks, timeout_s=300)

    def __enter__(self) -> Ranks:
        self._world.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._world.__exit__(*problem)

    def measure(self, cell: Cell) -> list[Sample]:
        """One sample per rank."""
        samples: list[Sample] = self._world.run(_measure, cell, self._folder)
        return samples


def _measure(cell: Cell, folder: str) -> Sample:
    """What each rank does for one cell."""
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    torch.set_num_threads(1)
    kind = getattr(torch, cell.dtype)
    n_in, n_out = shapes(cell.op, cell.count, ranks)
    if cell.contender == SHARED:
        x, y = _shared(0, cell, n_in, kind), _shared(1, cell, n_out, kind)
    else:
        x, y = torch.zeros(n_in, dtype=kind), torch.zeros(n_out, dtype=kind)
    source = _bits(x)
    target = _bits(y) if n_out else source
    return measure(_meet(folder, rank, ranks), cell, source, target, _call(cell, x, y, folder))


def _call(cell: Cell, x: torch.Tensor, y: torch.Tensor, folder: str) -> Callable[[], object]:
    if cell.contender == GLOO:
        start_gloo(folder)
    library: Any = dist if cell.contender == GLOO else unisono
    all_gather = getattr(library, "all_gather_single", None) or library.all_gather_into_tensor
    reduce_scatter = getattr(library, "reduce_scatter_single", None) or library.reduce_scatter_tensor
    return {
        "all_reduce": lambda: library.all_reduce(x),
        "broadcast": lambda: library.broadcast(x, 0),
        "all_gather": lambda: all_gather(y, x),
        "reduce_scatter": lambda: reduce_scatter(y, x),
        "all_to_all": lambda: library.all_to_all_single(y, x),
        "memcpy": lambda: y.copy_(x),
        "floor": lambda: x.add_(1),
    }[cell.op]


def _bits(tensor: torch.Tensor) -> Any:
    """The tensor as an array that shares its memory."""
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
