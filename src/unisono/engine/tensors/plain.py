"""The codes of dtypes, and the test whether a tensor's memory is just its elements in order."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from ...base.errors import DTypeError

ALL_DTYPES: tuple[torch.dtype, ...] = tuple(
    sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
)
"""All dtypes of this version of torch, which is the same on all ranks; the index of a dtype is its code."""

DTYPE_CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in enumerate(ALL_DTYPES)}

_NAMES = ["float4_e2m1fn_x2", *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))]
_ONLY_BITS = frozenset(getattr(torch, name, None) for name in _NAMES)
"""Dtypes that torch itself cannot copy, or not in every layout; each element takes a byte."""


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def check_is_tensor(argument: str, value: Any, move: str = "") -> None:
    """Raise DTypeError for anything but a tensor. move: what to do then; for arrays of numpy that is known."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, np.ndarray):
            move = "pass torch.from_numpy(array), which has the same memory"
        raise DTypeError(f"{argument}: expected a torch.Tensor, got {type(value).__name__}{move and f'; {move}'}")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes from data_ptr() on are the values of a CPU tensor's elements, in order."""
    return tensor.is_contiguous() and tensor.is_cpu and not tensor.is_conj() and not tensor.is_neg()


_is_nested: Any = torch.Tensor.is_nested.__get__  # type: ignore[attr-defined]


def have_strides(values: Iterable[Any]) -> bool:
    """Are these tensors, none of them nested? Only then torch's check of known lists does not end the process."""
    try:
        return True not in map(_is_nested, values)
    except TypeError:
        return False


def make_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU tensor itself where it is plain, or else a contiguous copy without gradient."""
    if is_plain(tensor):
        return tensor
    return as_bits(tensor.detach()).resolve_conj().resolve_neg().contiguous().view(tensor.dtype)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view that torch can copy: uint8 for the dtypes that it cannot copy, otherwise the tensor itself."""
    return tensor.view(torch.uint8) if tensor.dtype in _ONLY_BITS else tensor


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without gradient, laid out as `clone` lays it out."""
    return as_bits(tensor.detach()).clone().view(tensor.dtype)


def tensor_at(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor of so many elements at an address, whose memory it does not keep alive."""
    dtype = torch.uint8 if dtype in _ONLY_BITS else dtype
    if not count:
        return torch.empty(0, dtype=dtype, device="cpu")
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)
