"""What each collective should give, in a few obvious lines of torch.

Every function takes what each rank passes, as a list in rank order, and returns what each rank ends with, likewise: one
tensor per rank, blocks concatenated in rank order, None where a rank gets nothing. No argument is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..errors import ArgumentError

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "broadcast", "combine", "gather", "reduce", "reduce_scatter", "scatter",
]  # fmt: skip


def combine(tensors: Sequence[torch.Tensor], op: str = "sum") -> torch.Tensor:
    """((tensors[0] op tensors[1]) op tensors[2]) ... as unisono defines it, bit for bit.

    float16 and bfloat16 are accumulated in float32 and rounded once; the average of integers is their exact sum,
    divided towards zero.
    """
    dtype = tensors[0].dtype
    if dtype in (torch.float16, torch.bfloat16):
        return combine([tensor.float() for tensor in tensors], op).to(dtype)
    if op == "avg" and not dtype.is_floating_point:
        total = combine([tensor.long() for tensor in tensors], "sum")
        return torch.div(total, len(tensors), rounding_mode="trunc").to(dtype)
    steps: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "sum": torch.add,
        "avg": torch.add,
        "product": torch.mul,
        # Of two that compare equal (0 and -0) the later stays; the first NaN does.
        "min": lambda x, y: torch.where((x < y) | x.isnan(), x, y),
        "max": lambda x, y: torch.where((x > y) | x.isnan(), x, y),
    }
    if op not in steps:
        raise ArgumentError(f"op: {op!r} is none of {', '.join(steps)}")
    result = tensors[0].clone()
    for tensor in tensors[1:]:
        result = steps[op](result, tensor)
    return result / len(tensors) if op == "avg" else result


def all_reduce(tensors: Sequence[torch.Tensor], op: str = "sum") -> list[torch.Tensor]:
    """Everybody gets the combination of all tensors."""
    return [combine(tensors, op) for _ in tensors]


def reduce(tensors: Sequence[torch.Tensor], dst: int, op: str = "sum") -> list[torch.Tensor]:
    """dst gets the combination of all tensors; the others keep their own."""
    return [combine(tensors, op) if rank == dst else tensor.clone() for rank, tensor in enumerate(tensors)]


def broadcast(tensors: Sequence[torch.Tensor], src: int) -> list[torch.Tensor]:
    """Everybody gets the tensor of src."""
    return [tensors[src].clone() for _ in tensors]


def scatter(tensors: Sequence[torch.Tensor | None], src: int) -> list[torch.Tensor]:
    """Rank r gets block r of the tensor of src; the others' tensors do not matter."""
    whole = tensors[src]
    if whole is None:
        raise ArgumentError(f"tensors[{src}]: rank {src} is src and must pass a tensor")
    return _blocks(whole, len(tensors))


def gather(tensors: Sequence[torch.Tensor], dst: int) -> list[torch.Tensor | None]:
    """dst gets all tensors, concatenated; the others get nothing."""
    return [torch.cat([t.flatten() for t in tensors]) if rank == dst else None for rank in range(len(tensors))]


def all_gather(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Everybody gets all tensors, concatenated."""
    return [torch.cat([tensor.flatten() for tensor in tensors]) for _ in tensors]


def reduce_scatter(tensors: Sequence[torch.Tensor], op: str = "sum") -> list[torch.Tensor]:
    """Rank r gets block r of the combination of all tensors."""
    return _blocks(combine(tensors, op), len(tensors))


def all_to_all(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Rank q gets block q of every tensor, concatenated."""
    blocks = [_blocks(tensor, len(tensors)) for tensor in tensors]
    return [torch.cat([row[rank] for row in blocks]) for rank in range(len(tensors))]


def _blocks(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [block.clone() for block in tensor.flatten().view(count, tensor.numel() // count)]
