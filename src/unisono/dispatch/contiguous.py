"""Tensors of any layout as contiguous ones: inputs are copied before, results copied back after, where they must be."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .request import Request, Tensors

__all__ = ["contiguous"]

_ONLY_BITS = frozenset(getattr(torch, f"{sign}int{bits}", None) for sign in ("", "u") for bits in range(1, 8))
"""Dtypes that torch itself cannot copy: int1 to int7, each element in a byte."""


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype in _ONLY_BITS else tensor


def contiguous(request: Request, rank: int) -> tuple[Tensors, Tensors, Callable[[], None]]:
    """The input and output of a call, contiguous, and what brings the results home."""
    reading = {"broadcast": rank == request.root, "reduce": rank != request.root}
    only_read = reading.get(request.collective, False)
    back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def dense(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        return _bits(tensor.detach()).resolve_conj().resolve_neg().contiguous().view(tensor.dtype)

    def result(tensor: torch.Tensor) -> torch.Tensor:
        copy = dense(tensor)
        if copy is not tensor and not only_read:
            back.append((_bits(tensor.detach()), _bits(copy)))
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
