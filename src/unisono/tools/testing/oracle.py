"""The expected result of each collective, in a few lines of torch.

Every function takes the inputs of all ranks, in rank order, and returns the results of all ranks, in rank order: one
tensor per rank, blocks concatenated in rank order, None for a rank that gets nothing. Inputs are not changed.

op: any that the calls take. sizes: the number of elements of each rank's block, or for all_to_all of the block from
each rank (row) to each other (column); without them all blocks have the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...base.errors import ArgumentError
from ...calls.ops import OpLike
from .combine_oracle import combine


def all_reduce(tensors: Sequence[torch.Tensor], op: OpLike = "sum") -> list[torch.Tensor]:
    """Every rank gets the combination of all tensors."""
    return [combine(tensors, op) for _ in tensors]


def reduce(tensors: Sequence[torch.Tensor], dst: int, op: OpLike = "sum") -> list[torch.Tensor]:
    """Rank `dst` gets the combination of all tensors; the others keep their own."""
    return [combine(tensors, op) if rank == dst else tensor.clone() for rank, tensor in enumerate(tensors)]


def scan(tensors: Sequence[torch.Tensor], op: OpLike = "sum") -> list[torch.Tensor]:
    """Rank r gets the combination of the tensors of ranks 0 to r."""
    return [combine(tensors[: rank + 1], op) for rank in range(len(tensors))]


def exscan(tensors: Sequence[torch.Tensor], op: OpLike = "sum") -> list[torch.Tensor]:
    """Rank r gets the combination of the tensors of ranks 0 to r - 1; rank 0 keeps its own."""
    return [combine(tensors[:rank], op) if rank else tensors[0].clone() for rank in range(len(tensors))]


def broadcast(tensors: Sequence[torch.Tensor], src: int) -> list[torch.Tensor]:
    """Every rank gets the tensor of rank `src`."""
    return [tensors[src].clone() for _ in tensors]


def scatter(tensors: Sequence[torch.Tensor | None], src: int, sizes: Sequence[int] | None = None) -> list[torch.Tensor]:
    """Rank r gets block r of the tensor of rank `src`; the tensors of other ranks are ignored."""
    whole = tensors[src]
    if whole is None:
        raise ArgumentError(f"tensors[{src}]: rank {src} is src and must pass a tensor")
    return _blocks(whole, len(tensors), sizes)


def gather(tensors: Sequence[torch.Tensor], dst: int) -> list[torch.Tensor | None]:
    """Rank `dst` gets all tensors, concatenated; the others get None."""
    return [torch.cat([t.flatten() for t in tensors]) if rank == dst else None for rank in range(len(tensors))]


def all_gather(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Every rank gets all tensors, concatenated."""
    return [torch.cat([tensor.flatten() for tensor in tensors]) for _ in tensors]


def reduce_scatter(
    tensors: Sequence[torch.Tensor], op: OpLike = "sum", sizes: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """Rank r gets the combination of block r of all tensors."""
    columns = zip(*(_blocks(tensor, len(tensors), sizes) for tensor in tensors), strict=True)
    return [combine(column, op) for column in columns]


def all_to_all(tensors: Sequence[torch.Tensor], sizes: Sequence[Sequence[int]] | None = None) -> list[torch.Tensor]:
    """Rank q gets block q of every tensor, concatenated."""
    rows = [_blocks(t, len(tensors), sizes[rank] if sizes else None) for rank, t in enumerate(tensors)]
    return [torch.cat([row[rank] for row in rows]) for rank in range(len(tensors))]


def _blocks(tensor: torch.Tensor, count: int, sizes: Sequence[int] | None) -> list[torch.Tensor]:
    sizes = sizes or [tensor.numel() // count] * count
    return [block.clone() for block in torch.split(tensor.flatten(), list(sizes))]
