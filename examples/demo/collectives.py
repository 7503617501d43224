"""The six collectives, run on small tensors: what each rank held before and holds afterwards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import unisono

SMALL_BYTES = 16
"""The size of the tensors that are summed here: two numbers."""

Numbers = list[int]
"""The numbers that a rank holds."""


def _sum(call: Callable[..., object]) -> tuple[Numbers, Numbers]:
    rank = unisono.get_rank()
    tensor = torch.tensor([rank + 1, 10 * (rank + 1)])
    before = tensor.tolist()
    call(tensor)
    return before, tensor.tolist()


def _scatter() -> tuple[Numbers, Numbers]:
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    parts = [torch.tensor([r + 1]) for r in range(ranks)] if rank == 0 else None
    tensor = torch.zeros(1, dtype=torch.int64)
    unisono.scatter(tensor, parts, src=0)
    return [int(part) for part in parts or []], tensor.tolist()


def _gather() -> tuple[Numbers, Numbers]:
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    tensor = torch.tensor([rank + 1])
    parts = [torch.zeros_like(tensor) for _ in range(ranks)] if rank == 0 else None
    unisono.gather(tensor, parts, dst=0)
    return tensor.tolist(), [int(part) for part in parts or []]


def _all_gather() -> tuple[Numbers, Numbers]:
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    tensor = torch.tensor([rank + 1])
    parts = [torch.zeros_like(tensor) for _ in range(ranks)]
    unisono.all_gather(parts, tensor)
    return tensor.tolist(), [int(part) for part in parts]


def _broadcast() -> tuple[Numbers, Numbers]:
    rank = unisono.get_rank()
    tensor = torch.tensor([7, 8, 9]) if rank == 0 else torch.zeros(3, dtype=torch.int64)
    before = tensor.tolist()
    unisono.broadcast(tensor, src=0)
    return before, tensor.tolist()


COLLECTIVES: dict[str, tuple[str, Callable[[], tuple[Numbers, Numbers]]]] = {
    "reduce": ("the sum, on rank 0; the others keep what they had", lambda: _sum(partial(unisono.reduce, dst=0))),
    "all_reduce": ("the sum, on every rank", lambda: _sum(unisono.all_reduce)),
    "scatter": ("rank 0 deals out its parts", _scatter),
    "gather": ("rank 0 collects every rank's tensor", _gather),
    "all_gather": ("every rank collects every rank's tensor", _all_gather),
    "broadcast": ("rank 0's tensor, on every rank", _broadcast),
}
"""Name -> what it does, in words, and a function that runs it and returns the numbers before and after."""


def perform() -> list[tuple[Numbers, Numbers]]:
    """Run all six on the calling rank: before and after, in the order of COLLECTIVES."""
    return [act() for _, act in COLLECTIVES.values()]
