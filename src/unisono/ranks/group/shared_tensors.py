"""Tensors in shared memory: new ones, and existing ones moved there."""

from __future__ import annotations

import torch

from ...base.errors import ArgumentError, DTypeError
from ...engine.tensors import as_bits, check_is_tensor, set_memory
from .group import Group
from .initialize import group_or_default


def empty(*shape: int | tuple[int, ...], dtype: torch.dtype | None = None, group: Group | None = None) -> torch.Tensor:
    """An uninitialised CPU tensor in shared memory: collectives read and write it in place (zero copy).

    A call is zero copy if every rank passes such tensors. Raises ArgumentError, DTypeError, and OutOfMemory
    if there is too little memory.

    shape: integers, or one tuple of them, as in torch.empty.
    dtype: torch's default dtype unless given.
    """
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if not (dtype is None or isinstance(dtype, torch.dtype)):
        raise DTypeError(f"dtype: expected a torch.dtype, got {type(dtype).__name__}")
    return group_or_default(group).empty(*sizes, dtype=dtype)  # type: ignore[arg-type]


def share_(tensor: torch.Tensor, group: Group | None = None) -> torch.Tensor:
    """Move a tensor's data to shared memory, in place: the tensor stays the same object with the same values.

    tensor: a contiguous CPU tensor, parameters included; views of it made before keep the old memory. Returns it.
    Raises DTypeError where it is no tensor, ArgumentError where it is no contiguous CPU tensor, OutOfMemory.
    """
    check_is_tensor("tensor", tensor)
    if not tensor.is_cpu or not tensor.is_contiguous():
        raise ArgumentError(
            "tensor: only contiguous CPU tensors can be moved to shared memory; call .cpu().contiguous() first"
        )
    moved = empty(tuple(tensor.shape), dtype=tensor.dtype, group=group)
    with torch.no_grad():
        as_bits(moved).copy_(as_bits(tensor))
    set_memory(tensor, moved)
    return tensor
