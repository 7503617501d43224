"""Copies of tensors that are not contiguous: inputs are copied before the call, results copied back after it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..engine.tensors import as_bits, make_plain
from .request import Request, Tensors

__all__ = ["contiguous"]


def contiguous(request: Request, rank: int) -> tuple[Tensors, Tensors, Callable[[], None]]:
    """The input and output of a call, contiguous, and a function that copies results back to the user's tensors."""
    written = bool(request.written_on(rank))
    back: list[tuple[torch.Tensor, torch.Tensor]] = []

    def result(tensor: torch.Tensor) -> torch.Tensor:
        copy = make_plain(tensor)
        if copy is not tensor and written:
            back.append((as_bits(tensor.data), as_bits(copy)))  # .data: a version counter of its own
        return copy

    def finish() -> None:
        for tensor, copy in back:
            tensor.copy_(copy)

    def each(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> Tensors:
        if tensors is None:
            return None
        return change(tensors) if isinstance(tensors, torch.Tensor) else [change(tensor) for tensor in tensors]

    out = each(request.out, result)
    inp = out if request.in_place else each(request.inp, make_plain)
    return inp, out, finish
