"""The dtypes that can be combined: how elements lie in memory, as what they are combined, and the way to and fro.

Code is generated for vectors: `n` is the count of numbers in one, 1 standing for a plain number.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from llvmlite import ir

from . import float8

__all__ = ["DTYPES", "LAYOUTS", "OPS_OF", "Layout", "narrow", "splat", "vector", "widen"]

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


class Layout(NamedTuple):
    """How an element lies in memory (`stored`) and what it is combined as (`added`).

    size: bytes of a number. parts: numbers of an element; a complex one has two.
    """

    kind: Literal["bool", "signed", "unsigned", "float", "complex"]
    size: int
    stored: ir.Type
    added: ir.Type
    parts: int = 1


LAYOUTS: dict[str, Layout] = {
    "bool": Layout("bool", 1, _I8, _I8),
    "int8": Layout("signed", 1, _I8, _I8),
    "int16": Layout("signed", 2, _I16, _I16),
    "int32": Layout("signed", 4, _I32, _I32),
    "int64": Layout("signed", 8, _I64, _I64),
    "uint8": Layout("unsigned", 1, _I8, _I8),
    "uint16": Layout("unsigned", 2, _I16, _I16),
    "uint32": Layout("unsigned", 4, _I32, _I32),
    "uint64": Layout("unsigned", 8, _I64, _I64),
    "float16": Layout("float", 2, _I16, _F32),
    "bfloat16": Layout("float", 2, _I16, _F32),
    "float32": Layout("float", 4, _F32, _F32),
    "float64": Layout("float", 8, _F64, _F64),
    "complex64": Layout("complex", 4, _F32, _F32, parts=2),
    "complex128": Layout("complex", 8, _F64, _F64, parts=2),
    **{name: Layout("float", 1, _I8, _F32) for name in float8.FORMATS},
}

DTYPES: tuple[str, ...] = tuple(LAYOUTS)
"""The dtypes that can be combined, by torch's names. Data of any dtype can be moved."""

_ORDERED = ("sum", "avg", "product", "min", "max")
_BITWISE = ("band", "bor", "bxor")

OPS_OF: dict[str, tuple[str, ...]] = {
    "bool": ("sum", "product", "min", "max", *_BITWISE),
    "signed": (*_ORDERED, *_BITWISE),
    "unsigned": (*_ORDERED, *_BITWISE),
    "float": _ORDERED,
    "complex": ("sum", "avg", "product"),
}
"""What each kind of number can be combined with."""


def vector(kind: ir.Type, n: int) -> ir.Type:
    """The type of n numbers."""
    return ir.VectorType(kind, n) if n > 1 else kind


def splat(kind: ir.Type, n: int, value: float) -> Any:
    """n times the same constant."""
    return ir.Constant(vector(kind, n), [value] * n if n > 1 else value)


def widen(dtype: str, b: Any, v: Any, n: int) -> Any:
    """Stored numbers as what they are combined as. Any byte but 0 is a true bool."""
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
    """The way back, rounded to nearest even; NaN stays NaN."""
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
