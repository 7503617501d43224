"""all_reduce of sparse tensors: every rank gathers all tensors and adds them."""

from __future__ import annotations

from typing import Any

import torch

from ...base.errors import ArgumentError
from ...calls.collectives import all_gather
from ...calls.ops import resolve
from ...ranks.group.group import Group


def all_reduce_sparse(tensor: torch.Tensor, op: Any, group: Group, timeout_s: float | None) -> None:
    """Replace a sparse COO tensor, on every rank, by the sum or average of all ranks' tensors.

    tensor: the same shape on every rank, any number of non-zero elements; in place, coalesced afterwards. Raises
    ArgumentError for other layouts, ops or shapes.
    """
    name = resolve(op)
    if tensor.layout is not torch.sparse_coo or name not in ("sum", "avg"):
        raise ArgumentError(f"of sparse tensors only COO ones can be combined, with sum or avg, not {name} of this one")
    mine = tensor.detach().coalesce()
    _check_shapes(mine, group, timeout_s)
    places = all_gather(None, mine.indices().t().contiguous(), group, timeout_s=timeout_s)
    values = all_gather(None, mine.values(), group, timeout_s=timeout_s)
    # Checks are off: these indices come from existing tensors of this shape.
    total = torch.sparse_coo_tensor(torch.cat(places).t(), torch.cat(values), tensor.shape, check_invariants=False)
    total = total.coalesce()
    if name == "avg":
        total = total / group.size
    with torch.no_grad():
        tensor.copy_(total)


def _check_shapes(tensor: torch.Tensor, group: Group, timeout_s: float | None) -> None:
    """Raise ArgumentError on every rank if their tensors have different shapes."""
    mine = torch.tensor([tensor.sparse_dim(), *tensor.shape], device="cpu")
    shapes = [shape.tolist() for shape in all_gather(None, mine, group, timeout_s=timeout_s)]
    if any(shape != shapes[0] for shape in shapes):
        told = ", ".join(f"{shape} with {sparse} sparse on rank {rank}" for rank, (sparse, *shape) in enumerate(shapes))
        raise ArgumentError(f"sparse tensors must have one shape on all ranks, with as many sparse dimensions: {told}")
