"""Tensors in shared memory: new ones, and existing ones moved there."""

from __future__ import annotations

import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.tensors import as_bits, check_is_tensor, set_memory
from .group import Group
from .initialize import group_or_default


def empty(*shape: int | tuple[int, ...], dtype: torch.dtype | None = None, group: Group | None = None) -> torch.Tensor:
    """Make an uninitialized CPU tensor in shared memory. If all ranks pass such tensors, a call copies nothing.

    Args:
        shape: Integers, or one tuple of them, as in torch.empty.
        dtype: None: torch's default dtype.

    Raises:
        ArgumentError, DTypeError: The shape or dtype is invalid.
        OutOfMemory: There is not enough shared memory.
    """
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        raise DTypeError(f"dtype: got {type(dtype).__name__}, expected a torch.dtype")
    return group_or_default(group).empty(*sizes, dtype=dtype)  # type: ignore[arg-type]


def share_(tensor: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Move a tensor's data to shared memory. The tensor stays the same object with the same values.

    Args:
        tensor: A contiguous CPU tensor or parameter. Existing views of it keep the old memory.

    Returns:
        The tensor.

    Raises:
        ArgumentError, DTypeError: It is not a contiguous CPU tensor.
        OutOfMemory: There is not enough shared memory.
    """
    check_is_tensor("tensor", tensor)
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ArgumentError(
            "tensor: got a tensor that is not contiguous or not on the CPU. Call .cpu().contiguous() first."
        )
    moved = empty(tuple(tensor.shape), dtype=tensor.dtype, group=group)
    with torch.no_grad():
        as_bits(moved).copy_(as_bits(tensor))
    set_memory(tensor, moved)
    return tensor
