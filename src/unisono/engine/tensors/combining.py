"""Combine tensors with the kernels of the engine, where the interpreter does not."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence

import torch

from ..reducers import CustomOp, combine_address

_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)


def combiner(
    dtype: str, op: str | CustomOp, ranks: int = 1, *, last: bool = False
) -> Callable[[torch.Tensor, Sequence[torch.Tensor]], None]:
    """A function (out, ins) that combines tensors from left to right in one pass; out may be one of them.

    All are contiguous, with equally many elements of this dtype. last: the results are complete; averages are divided
    by `ranks`. Raises DTypeError.
    """
    kernel = _KERNEL(combine_address(dtype, op, last))

    def combine(out: torch.Tensor, ins: Sequence[torch.Tensor]) -> None:
        outs, inputs = array("q", [out.data_ptr()]), array("q", [tensor.data_ptr() for tensor in ins])
        kernel(outs.buffer_info()[0], 1, inputs.buffer_info()[0], len(inputs), out.numel(), ranks)

    return combine
