"""The real tensors of a call, whose elements are in their own memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...base.errors import ArgumentError

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def real(tensor: Any) -> Any:
    """Return the tensor with the elements: itself, or the result of an asynchronous functional collective.

    Raises ArgumentError for a tensor without elements of its own: a fake tensor, a DTensor and the like.
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
    """`real` of each tensor."""
    return [real(tensor) for tensor in tensors]


def one(items: Sequence[Any]) -> Any:
    """The only item of a list that torch makes with one item per device: a process has one CPU."""
    if len(items) != 1:
        needs = "a single-element" if items else "non-empty"
        raise ArgumentError(f"requires {needs} tensor list, for the one CPU of this process; got {len(items)} items")
    return real(items[0])
