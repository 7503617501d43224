"""Do tensors share memory? Exactly, element by element where their spans alone do not tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["overlaps_itself", "share_memory"]


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Do several of its elements share memory, as in an expanded tensor?"""
    if tensor.is_contiguous():
        return False
    known: int = torch._debug_has_internal_overlap(tensor)  # noqa: SLF001  0: no, 1: yes, 2: too hard to tell
    return known == 1 or (known > 1 and len(np.unique(_places(tensor))) < tensor.numel())


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Is there an element of each in the same memory?"""
    first, second = x.data_ptr(), y.data_ptr()
    if first + _span(x) <= second or second + _span(y) <= first:
        return False
    if x.is_contiguous() and y.is_contiguous():
        return x.numel() > 0 and y.numel() > 0
    return len(np.intersect1d(_places(x), _places(y))) > 0


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to behind the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((n - 1) * step for n, step in spans)) * tensor.element_size()


def _places(tensor: torch.Tensor) -> npt.NDArray[np.int64]:
    """The address of every element, in units of its size."""
    places = np.zeros((), np.int64)
    for n, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = np.add.outer(places, np.arange(n, dtype=np.int64) * step)
    return places.ravel() + tensor.data_ptr() // tensor.element_size()
