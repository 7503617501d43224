"""Code that converts numbers between memory and sums: for vectors of n numbers; with n = 1, for a plain number."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from . import float8

__all__ = ["TYPES", "narrow", "splat", "vector", "widen"]

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()

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
        bits = b.shl(b.zext(v, vector(_I32, n)), splat(_I32, n, 16))
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
        odd = b.and_(b.lshr(bits, splat(_I32, n, 16)), splat(_I32, n, 1))
        rounded = b.lshr(b.add(b.add(bits, splat(_I32, n, 0x7FFF)), odd), splat(_I32, n, 16))
        nan = b.fcmp_unordered("uno", v, v)
        return b.trunc(b.select(nan, splat(_I32, n, 0x7FC0), rounded), vector(_I16, n))
    if dtype == "float16":
        return b.bitcast(b.fptrunc(v, vector(_F16, n)), vector(_I16, n))
    if dtype in float8.FORMATS:
        return float8.encode(float8.FORMATS[dtype], b, v, n)
    return v
