"""`join`: make a loss depend on results that it does not use."""

from __future__ import annotations

from typing import Any

import torch


def join(tensor: torch.Tensor, *results: torch.Tensor) -> torch.Tensor:
    """Return the tensor's value as a new tensor whose backward also runs through the results, with zero gradients.

    Use it on ranks that make a call but do not use its result: `loss = join(loss, result)`.
    """
    for result in results:
        zeros: torch.Tensor = _Zeros.apply(result, tensor)  # type: ignore[no-untyped-call]
        tensor = tensor + zeros
    return tensor


class _Zeros(torch.autograd.Function):
    """Zeros like the second tensor, which autograd records as computed from the first."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(source)
        return torch.zeros_like(like)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        (source,) = ctx.saved_tensors
        return _Zeros.apply(source, source), None  # type: ignore[no-untyped-call]
