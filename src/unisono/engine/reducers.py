"""Combine kernels: outs[0 .. nout) = ins[0] op ins[1] op ... op ins[nin - 1], in one pass, in this order.

One kernel per dtype and op, compiled when it is first used and kept on disk; the interpreter calls it by its address.
Each is a loop over LLVM vectors of 64 lanes with a tail of single elements. float16 and bfloat16 are accumulated in
float32 and rounded once. An op that ends with a step of its own (avg divides) has a second kernel for the last combine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..errors import DTypeError

__all__ = ["DTYPES", "OPS", "combine_address"]

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_LANES = 64


class _DType(NamedTuple):
    """How elements lie in memory (`stored`) and what they are added as (`added`); `wide` holds exact integer sums."""

    size: int
    stored: ir.Type
    added: ir.Type
    kind: str  # "float", "signed", "unsigned"


_DTYPES: dict[str, _DType] = {
    "float32": _DType(4, _F32, _F32, "float"),
    "float64": _DType(8, _F64, _F64, "float"),
    "float16": _DType(2, _I16, _F32, "float"),
    "bfloat16": _DType(2, _I16, _F32, "float"),
    "int32": _DType(4, _I32, _I32, "signed"),
    "int64": _DType(8, _I64, _I64, "signed"),
    "uint8": _DType(1, _I8, _I8, "unsigned"),
}

DTYPES: tuple[str, ...] = tuple(_DTYPES)
"""The dtypes that can be combined, by torch's names. Data of any dtype can be moved."""

OPS: tuple[str, ...] = ("sum", "avg", "product", "min", "max")
"""The ops, by torch's names. min and max propagate NaN as torch does."""


def _vector(kind: ir.Type, lanes: int) -> ir.Type:
    return ir.VectorType(kind, lanes) if lanes > 1 else kind


def _splat(kind: ir.Type, lanes: int, value: int) -> Any:
    return ir.Constant(_vector(kind, lanes), [value] * lanes if lanes > 1 else value)


def _widen(name: str, b: Any, v: Any, lanes: int) -> Any:
    """Stored elements as what they are added as."""
    if name == "bfloat16":
        bits = b.shl(b.zext(v, _vector(_I32, lanes)), _splat(_I32, lanes, 16))
        return b.bitcast(bits, _vector(_F32, lanes))
    if name == "float16":
        return b.fpext(b.bitcast(v, _vector(_F16, lanes)), _vector(_F32, lanes))
    return v


def _narrow(name: str, b: Any, v: Any, lanes: int) -> Any:
    """The way back, rounded to nearest even; NaN stays NaN."""
    if name == "bfloat16":
        bits = b.bitcast(v, _vector(_I32, lanes))
        odd = b.and_(b.lshr(bits, _splat(_I32, lanes, 16)), _splat(_I32, lanes, 1))
        rounded = b.lshr(b.add(b.add(bits, _splat(_I32, lanes, 0x7FFF)), odd), _splat(_I32, lanes, 16))
        nan = b.fcmp_unordered("uno", v, v)
        return b.trunc(b.select(nan, _splat(_I32, lanes, 0x7FC0), rounded), _vector(_I16, lanes))
    if name == "float16":
        return b.bitcast(b.fptrunc(v, _vector(_F16, lanes)), _vector(_I16, lanes))
    return v


def _combine(op: str, kind: str, b: Any, x: Any, y: Any) -> Any:
    """x op y."""
    if op in ("sum", "avg"):
        return b.fadd(x, y) if kind == "float" else b.add(x, y)
    if op == "product":
        return b.fmul(x, y) if kind == "float" else b.mul(x, y)
    sign = "<" if op == "min" else ">"
    if kind == "float":
        better = b.or_(b.fcmp_ordered(sign, x, y), b.fcmp_unordered("uno", x, x))
    else:
        better = b.icmp_signed(sign, x, y) if kind == "signed" else b.icmp_unsigned(sign, x, y)
    return b.select(better, x, y)


def _divide(dtype: _DType, added: ir.Type, b: Any, v: Any, lanes: int, ranks: Any) -> Any:
    """The last step of avg. Integers are divided towards zero."""
    if dtype.kind == "float":
        divisor = b.sitofp(ranks, added)
        return b.fdiv(v, _spread(b, divisor, added, lanes))
    divisor = b.trunc(ranks, added) if added != _I64 else ranks
    return b.sdiv(v, _spread(b, divisor, added, lanes))


def _spread(b: Any, scalar: Any, kind: ir.Type, lanes: int) -> Any:
    if lanes == 1:
        return scalar
    vector = ir.VectorType(kind, lanes)
    one = b.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return b.shuffle_vector(
        one, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
    )


@intrinsic(prefer_literal=True)
def _loop(
    typing: Any, name: Any, op: Any, last: Any, outs: Any, nout: Any, ins: Any, nin: Any, count: Any, ranks: Any
) -> Any:
    dtype, op_name = _DTYPES[DTYPES[name.literal_value]], OPS[op.literal_value]
    dtype_name, divide = DTYPES[name.literal_value], op_name == "avg" and last.literal_value == 1
    # An average of integers is made from their exact sum; everything else wraps as torch does.
    exact = divide and dtype.kind != "float" and dtype.size < 8
    added = _I64 if exact else dtype.added

    def generate(context: Any, b: Any, signature: Any, args: Any) -> Any:
        _, _, _, outs, nout, ins, nin, count, ranks = args

        def number(k: int) -> Any:
            return ir.Constant(_I64, k)

        def elements(lanes: int, offset: Any) -> None:
            stored = _vector(dtype.stored, lanes)

            def get(k: Any) -> Any:
                base = b.load(b.inttoptr(b.add(ins, b.mul(k, number(8))), _I64.as_pointer()))
                value = b.load(b.inttoptr(b.add(base, offset), stored.as_pointer()))
                value.align = dtype.size
                value = _widen(dtype_name, b, value, lanes)
                if exact:
                    extend = b.sext if dtype.kind == "signed" else b.zext
                    value = extend(value, _vector(_I64, lanes))
                return value

            total = cgutils.alloca_once(b, _vector(added, lanes))
            b.store(get(number(0)), total)
            with cgutils.for_range(b, nin, start=number(1), intp=_I64) as k:
                b.store(_combine(op_name, dtype.kind, b, b.load(total), get(k.index)), total)
            value = b.load(total)
            if divide:
                value = _divide(dtype, added, b, value, lanes, ranks)
            if exact:
                value = b.trunc(value, _vector(dtype.added, lanes))
            value = _narrow(dtype_name, b, value, lanes)
            with cgutils.for_range(b, nout, intp=_I64) as k:
                base = b.load(b.inttoptr(b.add(outs, b.mul(k.index, number(8))), _I64.as_pointer()))
                b.store(value, b.inttoptr(b.add(base, offset), stored.as_pointer())).align = dtype.size

        full = b.udiv(count, number(_LANES))
        with cgutils.for_range(b, full, intp=_I64) as k:
            elements(_LANES, b.mul(k.index, number(_LANES * dtype.size)))
        done = b.mul(full, number(_LANES))
        with cgutils.for_range(b, b.sub(count, done), intp=_I64) as k:
            elements(1, b.mul(b.add(done, k.index), number(dtype.size)))
        return context.get_dummy_value()

    return types.void(name, op, last, *[types.intp] * 6), generate


def _kernel(name: int, op: int, last: int) -> Callable[..., None]:
    def combine(outs, nout, ins, nin, count, ranks):  # type: ignore[no-untyped-def]  # Numba reads the signature below
        _loop(name, op, last, outs, nout, ins, nin, count, ranks)

    return combine


@cache
def _compiled(dtype: str, op: str, last: bool) -> Any:
    kernel = _kernel(DTYPES.index(dtype), OPS.index(op), int(last))
    return cfunc(types.void(*[types.intp] * 6), cache=True)(kernel)


def combine_address(dtype: str, op: str, last: bool) -> int:
    """The address of the kernel for this dtype and op; `last`: the combine that completes a result.

    Compiles it at first use, or takes it from disk. Raises DTypeError for a pair that does not exist.
    """
    if dtype not in _DTYPES or op not in OPS:
        raise DTypeError(f"there is no {op} of {dtype} tensors; there is {', '.join(OPS)} of {', '.join(DTYPES)}")
    if op == "avg" and not last:
        op = "sum"
    return int(_compiled(dtype, op, last and op == "avg").address)
