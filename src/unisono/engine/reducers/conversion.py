"""Code that converts numbers between memory and sums: for vectors of n numbers; with n = 1, for a plain number.

`widen` may change their order, and `narrow` then restores it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from . import float8

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_HIGH = 0xFFFF0000  # the upper half of a 32-bit word

TYPES: dict[str, ir.Type] = {"i8": _I8, "i16": _I16, "i32": _I32, "i64": _I64, "float": _F32, "double": _F64}
"""LLVM's types by name."""


def vector(kind: ir.Type, n: int) -> ir.Type:
    """The LLVM type of n numbers."""
    return ir.VectorType(kind, n) if n > 1 else kind


def splat(kind: ir.Type, n: int, value: float) -> Any:
    """A constant vector of n equal numbers."""
    return ir.Constant(vector(kind, n), [value] * n if n > 1 else value)


def widen(dtype: str, b: Any, v: Any, n: int) -> Any:
    """Convert stored numbers to the type in which they are combined. A bool is true unless its byte is 0."""
    if dtype == "bool":
        return b.zext(b.icmp_unsigned("!=", v, splat(_I8, n, 0)), vector(_I8, n))
    if dtype == "bfloat16":
        if n == 1:
            return b.bitcast(b.shl(b.zext(v, _I32), splat(_I32, n, 16)), _F32)
        # First the numbers at even places, then those at odd ones: two of them are a 32-bit word, and none is moved.
        pairs = b.bitcast(v, vector(_I32, n // 2))
        even, odd = b.shl(pairs, splat(_I32, n // 2, 16)), b.and_(pairs, splat(_I32, n // 2, _HIGH))
        bits = b.shuffle_vector(even, odd, ir.Constant(vector(_I32, n), list(range(n))))
        return b.bitcast(bits, vector(_F32, n))
    if dtype == "float16":
        return b.fpext(b.bitcast(v, vector(_F16, n)), vector(_F32, n))
    if dtype in float8.FORMATS:
        return float8.decode(float8.FORMATS[dtype], b, v, n)
    return v


def narrow(dtype: str, b: Any, v: Any, n: int) -> Any:
    """Convert combined numbers to the stored type, rounded to nearest even; NaN stays NaN."""
    if dtype == "bfloat16":
        bits = b.bitcast(v, vector(_I32, n))
        last = b.and_(b.lshr(bits, splat(_I32, n, 16)), splat(_I32, n, 1))
        rounded = b.add(b.add(bits, splat(_I32, n, 0x7FFF)), last)
        nan = b.fcmp_unordered("uno", v, v)
        high = b.select(nan, splat(_I32, n, 0x7FC0 << 16), rounded)
        if n == 1:
            return b.trunc(b.lshr(high, splat(_I32, n, 16)), _I16)
        even, odd = (
            b.shuffle_vector(high, high, ir.Constant(vector(_I32, n // 2), list(half)))
            for half in (range(n // 2), range(n // 2, n))
        )
        pairs = b.or_(b.lshr(even, splat(_I32, n // 2, 16)), b.and_(odd, splat(_I32, n // 2, _HIGH)))
        return b.bitcast(pairs, vector(_I16, n))
    if dtype == "float16":
        return b.bitcast(b.fptrunc(v, vector(_F16, n)), vector(_I16, n))
    if dtype in float8.FORMATS:
        return float8.encode(float8.FORMATS[dtype], b, v, n)
    return v
