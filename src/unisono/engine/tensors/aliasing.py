"""Whether tensors share memory: exactly, element by element where the ranges of their addresses do not tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements of a tensor share memory, as in an expanded tensor."""
    if tensor.is_contiguous():
        return False
    known: int = torch._debug_has_internal_overlap(tensor)  # noqa: SLF001  0: no, 1: yes, 2: too hard to tell
    return known == 1 or (known > 1 and len(np.unique(_places(tensor))) < tensor.numel())


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether an element of one tensor shares memory with an element of the other."""
    first, second = x.data_ptr(), y.data_ptr()
    if first + _span(x) <= second or second + _span(y) <= first:
        return False
    if x.is_contiguous() and y.is_contiguous():
        return x.numel() > 0 and y.numel() > 0
    return len(np.intersect1d(_places(x), _places(y))) > 0


def first_overlap(
    starts: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64], written: npt.NDArray[np.bool_]
) -> tuple[int, int] | None:
    """The indices of two contiguous tensors that share memory and of which one is written; None if there are none.

    starts, nbytes, written: of each tensor, its address, its bytes, and whether it is written. Much faster than
    `share_memory` for each pair.
    """
    ends, filled = starts + nbytes, nbytes > 0
    if (np.sort(starts)[1:] >= np.sort(ends)[:-1]).all():
        return None  # each ends before the next starts
    (targets,) = np.nonzero(written & filled)
    targets = targets[np.argsort(starts[targets], kind="stable")]
    (into,) = np.nonzero(ends[targets[:-1]] > starts[targets[1:]])
    if len(into):
        return int(targets[into[0]]), int(targets[into[0] + 1])
    if len(targets):  # written tensors do not overlap: a read one can only meet the first that ends after its start
        (sources,) = np.nonzero(~written & filled)
        first = np.searchsorted(ends[targets], starts[sources], side="right")
        meets = targets[np.minimum(first, len(targets) - 1)]
        hit = (first < len(targets)) & (starts[meets] < ends[sources])
        if hit.any():
            return int(sources[hit][0]), int(meets[hit][0])
    return None


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the start of the first element to the end of the last."""
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
