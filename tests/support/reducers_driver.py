"""Combine kernels, called on tensors, and what they should give in a few obvious lines of torch."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from tests.support import oracle
from unisono.engine.reducers import DTYPES, CustomOp, combine_address

BOOL = ("bool",)
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
FLOAT8 = tuple(dtype for dtype in DTYPES if dtype.startswith("float8"))
SHORT = ("float16", "bfloat16", *FLOAT8)
FLOATS = ("float32", "float64", *SHORT)
COMPLEX = ("complex64", "complex128")

NUMERIC = ("sum", "avg", "product", "min", "max")
BITWISE = ("band", "bor", "bxor")
PAIRS = [
    *((dtype, op) for dtype in FLOATS for op in NUMERIC),
    *((dtype, op) for dtype in INTEGERS for op in NUMERIC + BITWISE),
    *((dtype, op) for dtype in BOOL for op in ("sum", "product", "min", "max", *BITWISE)),
    *((dtype, op) for dtype in COMPLEX for op in ("sum", "avg", "product")),
]
"""Every dtype with every op that it has."""

Op = str | CustomOp
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@cache
def kernel(dtype: str, op: Op, last: bool) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(combine_address(dtype, op, last))


def run(op: Op, last: bool, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], ranks: int) -> None:
    ins = (ctypes.c_int64 * len(inputs))(*(tensor.data_ptr() for tensor in inputs))
    outs = (ctypes.c_int64 * len(outputs))(*(tensor.data_ptr() for tensor in outputs))
    name = str(inputs[0].dtype).removeprefix("torch.")
    kernel(name, op, last)(
        ctypes.addressof(outs), len(outputs), ctypes.addressof(ins), len(inputs), inputs[0].numel(), ranks
    )


def result(op: Op, last: bool, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(inputs[0])
    run(op, last, inputs, [out], len(inputs))
    return out


def expected(op: str, last: bool, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """ins[0] op ins[1] op ..., from left to right, and for the last avg the quotient."""
    return oracle.combine(inputs, op if last or op != "avg" else "sum")


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Equal bit for bit; any NaN is as good as any other."""
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.is_complex():
        return same_bits(torch.view_as_real(x), torch.view_as_real(y))
    bits = BITS[x.element_size()]
    if x.dtype.is_floating_point:
        nan = x.float().isnan() if x.element_size() == 1 else x.isnan()
        if not torch.equal(nan, y.float().isnan() if y.element_size() == 1 else y.isnan()):
            return False
        return torch.equal(x.view(bits).masked_fill(nan, 0), y.view(bits).masked_fill(nan, 0))
    return torch.equal(x.view(bits), y.view(bits))


def data(dtype: str, nin: int, count: int, seed: int) -> list[torch.Tensor]:
    """Any bit pattern for integers and float8; for other floats, numbers of many sizes. Different in every place."""
    draw = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if dtype in BOOL:
        return [torch.randint(2, (count,), generator=draw).to(kind) for _ in range(nin)]
    if dtype in INTEGERS + FLOAT8:
        size = torch.empty(0, dtype=kind).element_size()
        return [torch.randint(256, (count * size,), generator=draw).to(torch.uint8).view(kind) for _ in range(nin)]
    exact = torch.complex128 if dtype in COMPLEX else torch.float64
    drawn = torch.randn(nin, count, generator=draw, dtype=exact)
    scale = torch.randint(-6, 7, (nin, count), generator=draw).double().exp2()
    return list((drawn * scale).to(kind))
