"""Tie results into a loss that has no use for them."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["join"]


def join(tensor: torch.Tensor, *results: torch.Tensor) -> torch.Tensor:
    """The tensor, unchanged, whose backward also runs through the results, with gradients of zero.

    For ranks that take part in a call but do not need what it returns: `loss = join(loss, result)`.
    """
    for result in results:
        zeros: torch.Tensor = _Zeros.apply(result, tensor)  # type: ignore[no-untyped-call]
        tensor = tensor + zeros
    return tensor


class _Zeros(torch.autograd.Function):
    """Zeros like the second tensor, which depend on the first as far as autograd knows."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(source)
        return torch.zeros_like(like)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        (source,) = ctx.saved_tensors
        return _Zeros.apply(source, source), None  # type: ignore[no-untyped-call]
