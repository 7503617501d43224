"""Tensors as the engine sees them: codes of dtypes, plain memory, whether two share it, autograd's versions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ..base import dtype_codes
from ..base.errors import ArgumentError, DTypeError
from .compile.program import Words

DTYPES: dict[int, torch.dtype] = {
    code: getattr(torch, name) for name, code in dtype_codes.DTYPE_CODES.items() if hasattr(torch, name)
}
"""Code -> dtype, for the dtypes that this version of torch has."""

DTYPE_CODES: dict[torch.dtype, int] = {dtype: code for code, dtype in DTYPES.items()}

_NAMES = ["float4_e2m1fn_x2", *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))]
ONLY_BITS = frozenset(getattr(torch, name, None) for name in _NAMES)
"""Dtypes that torch itself cannot copy, or not in every layout; each element takes a byte."""


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def check_known(argument: str, dtype: torch.dtype) -> None:
    """Raise DTypeError for a dtype without a code, of a torch that is newer than unisono."""
    if dtype not in DTYPE_CODES:
        raise DTypeError(
            f"{argument}: got dtype {dtype_name(dtype)} of torch {torch.__version__}, which unisono does not support. "
            "Pass .view(torch.uint8)."
        )


def dtype_named(name: str) -> torch.dtype:
    """The dtype of this name. Raises ArgumentError if this version of torch has none."""
    dtype = DTYPES.get(dtype_codes.DTYPE_CODES.get(name, -1))
    if dtype is None:
        raise ArgumentError(
            f"got dtype {name!r}, which torch {torch.__version__} of this rank does not have. Install the same torch "
            "on all ranks."
        )
    return dtype


def check_is_tensor(argument: str, value: Any, move: str = "") -> None:
    """Raise DTypeError for anything but a tensor. move: the user's next move; an array of numpy has its own."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, np.ndarray):
            move = "Pass torch.from_numpy(array), which has the same memory"
        raise DTypeError(f"{argument}: got {type(value).__name__}, expected a torch.Tensor{move and f'. {move}.'}")


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes from data_ptr() on are the values of a CPU tensor's elements, in order."""
    return tensor.is_contiguous() and tensor.is_cpu and not tensor.is_conj() and not tensor.is_neg()


def make_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU tensor itself where it is plain, or else a contiguous copy without gradient."""
    if is_plain(tensor):
        return tensor
    return as_bits(tensor.detach()).resolve_conj().resolve_neg().contiguous().view(tensor.dtype)


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view that torch can copy: uint8 for the dtypes that it cannot copy, otherwise the tensor itself."""
    return tensor.view(torch.uint8) if tensor.dtype in ONLY_BITS else tensor


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without gradient, laid out as `clone` lays it out."""
    return as_bits(tensor.detach()).clone().view(tensor.dtype)


@contextmanager
def in_mode_of(tensor: torch.Tensor) -> Iterator[None]:
    """The modes in which an operation in place may write a tensor, whatever the modes of the caller's thread are.

    torch writes tensors of inference mode in that mode only. A normal tensor that is given the memory of an inference
    tensor becomes one itself, so that tensor must be made in this mode, too.
    """
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        yield


def set_memory(tensor: torch.Tensor, memory: torch.Tensor) -> None:
    """Let a contiguous tensor have the memory of another one of its dtype; it keeps its shape."""
    with in_mode_of(tensor):
        own = torch.empty(0, dtype=memory.dtype, device="cpu")
        tensor.data = own.set_(memory.untyped_storage(), memory.storage_offset(), tensor.shape, tensor.stride())


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


def first_overlap(starts: Sequence[int], nbytes: Sequence[int], written: Sequence[bool]) -> tuple[int, int] | None:
    """The indices of two contiguous tensors that share memory and of which one is written; None if there are none.

    starts, nbytes, written: of each tensor, its address, its bytes, and whether it is written. Much faster than
    `share_memory` for each pair.
    """
    spans = sorted((start, start + n, k) for k, (start, n) in enumerate(zip(starts, nbytes, strict=True)) if n)
    last_read = last_written = 0, -1  # of the tensors so far, the one that ends last
    for start, end, k in spans:
        for other_end, other in (last_written, last_read) if written[k] else (last_written,):
            if start < other_end:
                return min(k, other), max(k, other)
        if written[k]:
            last_written = max(last_written, (end, k))
        else:
            last_read = max(last_read, (end, k))
    return None


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the start of the first element to the end of the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    spans = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((n - 1) * step for n, step in spans)) * tensor.element_size()


def _places(tensor: torch.Tensor) -> Words:
    """The address of every element, in units of its size."""
    places = np.zeros((), np.int64)
    for n, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = np.add.outer(places, np.arange(n, dtype=np.int64) * step)
    return places.ravel() + tensor.data_ptr() // tensor.element_size()


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


_DLPACK = 1, 3


def _exporter() -> int:
    """The address of torch's function that describes a tensor, of DLPack's C interface 1.3; 0 where there is none."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    interface: Any = None if capsule is None else _capsule_pointer(capsule, b"dlpack_exchange_api")
    while interface:  # its table begins with its version, and has the address of the table of an older version
        major, minor = (ctypes.c_uint32 * 2).from_address(interface)
        table = (ctypes.c_void_p * 2).from_address(interface)
        if major == _DLPACK[0] and minor >= _DLPACK[1]:
            return (ctypes.c_void_p * 6).from_address(interface)[5] or 0
        interface = table[1]
    return 0


EXPORTER = _exporter()

mark_written: Callable[[Iterable[torch.Tensor]], None] = torch._C._increment_version  # noqa: SLF001
"""Raise the version counters of tensors: `torch.autograd.graph.increment_version`, in half the time."""

use_count: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]  # noqa: SLF001
"""How many references C++ code has to a tensor, counting one for all of Python's."""


def needed_by_autograd(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of which autograd may need the old values. Reads the grad mode: call it on the caller's thread.

    Kernels write through addresses, which autograd does not see. A call raises the version counter of a tensor that it
    has written, as an operation in place does, where autograd may need the old values: where the tensor

    - is held by autograd or other C++ code, such as an operation that has saved it for backward; or
    - requires grad, with grad mode on, and is neither a leaf nor a view of one.

    Then backward through an operation that has saved the tensor raises RuntimeError. Other tensors keep their version,
    as they do with Gloo: a detached tensor shares its counter with the tensor it came from, and a higher version makes
    that one's views unusable if `chunk` or `split` made them, or `no_grad` code.
    """
    tracked = torch.is_grad_enabled()
    return [
        tensor
        for tensor in tensors
        if (tracked and not _from_leaf(tensor) if tensor.requires_grad else use_count(tensor) > 1)
    ]


def _from_leaf(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf or (tensor._is_view() and tensor._base.is_leaf)  # type: ignore[union-attr]  # noqa: SLF001
