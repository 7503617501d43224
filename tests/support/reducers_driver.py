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
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def name_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@cache
def kernel(dtype: str, op: Op, last: bool) -> Any:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(combine_address(dtype, op, last))


def run(op: Op, last: bool, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], ranks: int) -> None:
    ins = (ctypes.c_int64 * len(inputs))(*(tensor.data_ptr() for tensor in inputs))
    outs = (ctypes.c_int64 * len(outputs))(*(tensor.data_ptr() for tensor in outputs))
    kernel(name_of(inputs[0]), op, last)(
        ctypes.addressof(outs), len(outputs), ctypes.addressof(ins), len(inputs), inputs[0].numel(), ranks
    )


def result(op: Op, last: bool, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(inputs[0])
    run(op, last, inputs, [out], len(inputs))
    return out


def expected(op: str, last: bool, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """ins[0] op ins[1] op ..., from left to right, and for the last avg the quotient."""
    return oracle.combine(inputs, op if last or op != "avg" else "sum")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as integers of its size, which torch can copy whatever the dtype is; complex128 stays."""
    return tensor.detach().view(_BITS[tensor.dtype.itemsize])


def pattern(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element; where elements can be combined, any NaN as one NaN."""
    dense = torch.contiguous_format  # of one element, strides mean nothing to torch, but to a view of its bytes
    flat = bits(tensor).reshape(-1).clone(memory_format=dense).view(tensor.dtype)
    raw = flat.view(torch.uint8).view(len(flat), flat.itemsize)
    if name_of(tensor) in FLOATS + COMPLEX:
        parts = torch.view_as_real(flat) if flat.is_complex() else flat[:, None]
        nan = torch.tensor([torch.nan]).to(parts.dtype).view(torch.uint8)
        raw.view(*parts.shape, parts.itemsize)[(parts.float() if parts.itemsize == 1 else parts).isnan()] = nan
    return raw


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and x.shape == y.shape and torch.equal(pattern(x), pattern(y))


def data(dtype: str, nin: int, count: int, seed: int, exact_for: str = "") -> list[torch.Tensor]:
    """Input for `nin` ranks, `count` different values each: integers and float8 of any bits, floats of many magnitudes.

    Where torch can hardly do more than move a dtype, they are integers of its size. exact_for: an op that up to seven
    ranks can combine these values by in any order, with any partial results: none is rounded, and no zero has a sign.
    """
    if dtype not in DTYPES:
        dtype = f"uint{8 * getattr(torch, dtype).itemsize}"
    kind, draw = getattr(torch, dtype), torch.Generator().manual_seed(seed)
    if dtype in BOOL:
        return [torch.randint(2, (count,), generator=draw).to(kind) for _ in range(nin)]
    if exact_for and (dtype not in INTEGERS or exact_for == "avg"):  # others wrap
        small = [1, 2, -1] if exact_for in ("product", "numbers") else [-1, 0, 1] if dtype in FLOAT8 else range(-3, 4)
        drawn = torch.tensor(small)[torch.randint(len(small), (nin, count), generator=draw)]
        if not kind.is_signed:
            drawn = drawn.abs()
        if kind.is_complex and exact_for == "product":
            drawn = drawn * (1 + 2j)  # no power of it has a part of zero
        elif kind.is_complex:
            drawn = torch.complex(drawn.double(), drawn.roll(1, -1).double())
        return list(drawn.to(kind))
    if dtype in INTEGERS + FLOAT8:
        return [torch.randint(256, (count * kind.itemsize,), generator=draw).byte().view(kind) for _ in range(nin)]
    numbers = torch.randn(nin, count, generator=draw, dtype=torch.complex128 if dtype in COMPLEX else torch.float64)
    return list((numbers * torch.randint(-6, 7, (nin, count), generator=draw).double().exp2()).to(kind))
