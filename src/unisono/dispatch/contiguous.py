"""Tensors of any layout as contiguous ones: inputs are copied before, results copied back after, where they must be."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .request import Request, Tensors

__all__ = ["bits", "contiguous"]

_NAMES = ["float4_e2m1fn_x2", *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))]
_ONLY_BITS = frozenset(getattr(torch, name, None) for name in _NAMES)
"""Dtypes that torch itself cannot copy, or not in every layout; each element takes a byte."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the tensor that torch can copy."""
    return tensor.view(torch.uint8) if tensor.dtype in _ONLY_BITS else tensor


def contiguous(request: Request, rank: int) -> tuple[Tensors, Tensors, Callable[[], None]]:
    """The input and output of a call, contiguous, and what brings the results home."""
    reading = {"broadcast": rank == request.root, "reduce": rank != request.root}
    only_read = reading.get(request.collective, False)
    back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def dense(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        return bits(tensor.detach()).resolve_conj().resolve_neg().contiguous().view(tensor.dtype)

    def result(tensor: torch.Tensor) -> torch.Tensor:
        copy = dense(tensor)
        if copy is not tensor and not only_read:
            back.append((bits(tensor.data), bits(copy)))  # .data: a version counter of its own
        return copy

    def finish() -> None:
        for tensor, copy in back:
            tensor.copy_(copy)

    def each(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        if tensors is None:
            return None
        return change(tensors) if isinstance(tensors, torch.Tensor) else [change(tensor) for tensor in tensors]

    out = each(request.out, result)
    inp = out if request.in_place else each(request.inp, dense)
    return inp, out, finish
