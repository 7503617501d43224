"""Tensors that have their elements in memory of their own: what calls can read and write."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentError

__all__ = ["real", "reals"]

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def real(tensor: Any) -> Any:
    """The tensor with the elements: itself, or what an asynchronous functional collective has promised.

    Raises ArgumentError for tensors that only stand for others: fake ones, DTensor and the like.
    """
    kind = type(tensor)
    if kind in _PLAIN or not isinstance(tensor, torch.Tensor):
        return tensor
    if kind.__name__ == "AsyncCollectiveTensor":
        return tensor.trigger_wait()  # type: ignore[attr-defined]
    if kind.__name__ == "FakeTensor":
        raise ArgumentError(
            "a fake tensor has no elements to communicate: call torch.distributed outside of FakeTensorMode, or with "
            'the backend "fake"'
        )
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ArgumentError(
            f"a {kind.__name__} stands for other tensors, and has no elements of its own: pass these, which for a "
            "DTensor .to_local() returns"
        )
    return tensor


def reals(tensors: Any) -> list[Any]:
    """`real` for each of a list."""
    return [real(tensor) for tensor in tensors]
