"""Code that converts numbers between memory and sums: for vectors of n numbers; with n = 1, for a plain number.

`widen` may change their order, and `narrow` then restores it. LLVM has no type for torch's four float8 formats: they
are converted to float32 and back as vectors of bits.
"""

from typing import Any, NamedTuple

import torch
from llvmlite import ir

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_HIGH = 0xFFFF0000  # the upper half of a 32-bit word

TYPES: dict[str, ir.Type] = {"i8": _I8, "i16": _I16, "i32": _I32, "i64": _I64, "float": _F32, "double": _F64}
"""LLVM's types by name."""

_MANTISSA, _BIAS = 23, 127  # of float32
_SIGN, _INFINITY, _NAN = 0x80000000, 0x7F800000, 0x7FC00000
_NEGATIVE_ZERO = 0x80


class Float8Format(NamedTuple):
    """A code is sign, exponent and mantissa. A normal number has the bits of the float32, with a shorter mantissa and
    another bias of the exponent. Subnormal numbers are multiples of one power of two.

    mantissa: its bits.
    bias: the bias of the exponent.
    top: the first magnitude that is not finite. In the "fnuz" formats it is the code of -0, which is the only NaN.
    overflow: torch's code of numbers that are too large: NaN, infinity or the largest finite number, depending on the
    format and the version of torch.
    """

    mantissa: int
    bias: int
    top: int
    overflow: int


def _format(dtype: torch.dtype, mantissa: int, bias: int, top: int) -> Float8Format:
    overflow = torch.tensor([torch.inf], device="cpu").to(dtype).view(torch.uint8)
    return Float8Format(mantissa, bias, top, int(overflow))


FLOAT8: dict[str, Float8Format] = {
    "float8_e4m3fn": _format(torch.float8_e4m3fn, mantissa=3, bias=7, top=0x7F),
    "float8_e5m2": _format(torch.float8_e5m2, mantissa=2, bias=15, top=0x7C),
    "float8_e4m3fnuz": _format(torch.float8_e4m3fnuz, mantissa=3, bias=8, top=_NEGATIVE_ZERO),
    "float8_e5m2fnuz": _format(torch.float8_e5m2fnuz, mantissa=2, bias=16, top=_NEGATIVE_ZERO),
}


def vector(kind: ir.Type, n: int) -> ir.Type:
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
    if dtype in FLOAT8:
        return _decode_float8(FLOAT8[dtype], b, v, n)
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
    if dtype in FLOAT8:
        return _encode_float8(FLOAT8[dtype], b, v, n)
    return v


def _decode_float8(form: Float8Format, b: Any, v: Any, n: int) -> Any:
    integers, floats, number = _types(n)
    code = b.zext(v, integers)
    magnitude = b.and_(code, number(0x7F))
    shifted = b.shl(magnitude, number(_MANTISSA - form.mantissa))
    normal = b.add(shifted, number((_BIAS - form.bias) << _MANTISSA))
    # A subnormal mantissa has no leading one: subtract the one that a float32 has.
    least = number((_BIAS - form.bias + 1) << _MANTISSA)
    subnormal = b.fsub(b.bitcast(b.add(shifted, least), floats), b.bitcast(least, floats))
    is_normal = b.icmp_unsigned(">=", magnitude, number(1 << form.mantissa))
    bits = b.select(is_normal, normal, b.bitcast(subnormal, integers))
    bits = b.select(b.icmp_unsigned(">=", magnitude, number(form.top)), b.or_(shifted, number(_INFINITY)), bits)
    bits = b.or_(bits, b.shl(b.and_(code, number(0x80)), number(24)))
    if form.top == _NEGATIVE_ZERO:
        bits = b.select(b.icmp_unsigned("==", code, number(_NEGATIVE_ZERO)), number(_NAN), bits)
    return b.bitcast(bits, floats)


def _encode_float8(form: Float8Format, b: Any, v: Any, n: int) -> Any:
    """Convert n float32 numbers to the nearest codes, ties to even."""
    integers, floats, number = _types(n)
    shift = _MANTISSA - form.mantissa
    bits = b.bitcast(v, integers)
    sign = b.and_(bits, number(_SIGN))
    magnitude = b.xor(bits, sign)
    # Numbers are cut off at the first that is not finite, so that rounding cannot carry past `top`.
    limit = number((form.top << shift) + ((_BIAS - form.bias) << _MANTISSA))
    cut = b.select(b.icmp_unsigned("<", magnitude, limit), magnitude, limit)
    odd = b.and_(b.lshr(cut, number(shift)), number(1))
    half = number(((form.bias - _BIAS) << _MANTISSA) + (1 << (shift - 1)) - 1)
    normal = b.lshr(b.add(b.add(cut, half), odd), number(shift))
    # The last bit of `magic` is worth the smallest code: adding a small number to it rounds that number to codes.
    magic = number((_BIAS - form.bias + shift + 1) << _MANTISSA)
    subnormal = b.bitcast(b.fadd(b.bitcast(cut, floats), b.bitcast(magic, floats)), integers)
    is_normal = b.icmp_unsigned(">=", cut, number((_BIAS - form.bias + 1) << _MANTISSA))
    code = b.select(is_normal, normal, b.sub(subnormal, magic))
    code = b.select(b.icmp_unsigned("==", code, number(form.top)), number(form.overflow), code)
    nan = b.icmp_unsigned(">", magnitude, number(_INFINITY))
    code = b.select(nan, number(max(form.top, 0x7F)), code)
    if form.top == _NEGATIVE_ZERO:
        sign = b.select(b.icmp_unsigned("==", code, number(0)), number(0), sign)
    return b.trunc(b.or_(code, b.lshr(sign, number(24))), vector(_I8, n))


def _types(n: int) -> tuple[Any, Any, Any]:
    """The LLVM types of n integers and of n floats, and a function that makes a constant of n equal integers."""
    return vector(_I32, n), vector(_F32, n), lambda value: splat(_I32, n, value)
