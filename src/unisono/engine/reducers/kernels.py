"""The kernels of the ops that have a name: one per dtype and op, compiled at first use and kept on disk.

Each is a loop over LLVM vectors with a tail of single elements. Short floats are accumulated in float32 and rounded
once. An op that ends with a step of its own (avg divides) has a second kernel for the last combine.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Any, no_type_check

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

from ..compiled import checksum
from .dtypes import DTYPES, LAYOUTS, Layout, narrow, splat, vector, widen
from .float8 import FORMATS

__all__ = ["OPS", "named_address"]

_I32, _I64, _F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
_NUMBERS = 64
"""Numbers at a time: enough for the widest registers of a processor, few enough to stay in them."""

OPS: tuple[str, ...] = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""The ops, by torch's names. min and max propagate NaN as torch does. Sums and products of integers wrap as torch's do,
but an average is made from the exact sum, except of 64 bits, and divided towards zero.
"""

_OF_BOOLS = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}

_SOURCES = zlib.crc32(
    repr(FORMATS).encode(), checksum(Path(__file__).with_name(f"{name}.py") for name in ("dtypes", "float8"))
)
"""What the code of a kernel depends on beside dtype, op and this file: Numba's cache on disk sees no other file."""


def _combine(op: str, layout: Layout, b: Any, x: Any, y: Any, n: int) -> Any:
    """x op y."""
    if layout.kind == "bool":
        op = _OF_BOOLS.get(op, op)
    inexact = layout.kind in ("float", "complex")
    if op in ("sum", "avg"):
        return b.fadd(x, y) if inexact else b.add(x, y)
    if op == "product":
        if layout.kind == "complex":
            return _complex_product(b, x, y, n)
        return b.fmul(x, y) if inexact else b.mul(x, y)
    if op == "band":
        return b.and_(x, y)
    if op == "bor":
        return b.or_(x, y)
    if op == "bxor":
        return b.xor(x, y)
    sign = "<" if op == "min" else ">"
    if inexact:
        better = b.or_(b.fcmp_ordered(sign, x, y), b.fcmp_unordered("uno", x, x))
    else:
        better = b.icmp_signed(sign, x, y) if layout.kind == "signed" else b.icmp_unsigned(sign, x, y)
    return b.select(better, x, y)


def _complex_product(b: Any, x: Any, y: Any, n: int) -> Any:
    """Of n / 2 numbers each, real and imaginary parts in turn: (ac - bd) + (ad + bc) i, every product rounded."""

    def pick(v: Any, order: list[int]) -> Any:
        return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(_I32, n), order))

    even = range(0, n, 2)
    real, imaginary = pick(x, [k for i in even for k in (i, i)]), pick(x, [k for i in even for k in (i + 1, i + 1)])
    minus = ir.Constant(x.type, [-1.0, 1.0] * (n // 2))
    swapped = pick(y, [k for i in even for k in (i + 1, i)])
    return b.fadd(b.fmul(real, y), b.fmul(minus, b.fmul(imaginary, swapped)))


def _divide(layout: Layout, b: Any, v: Any, n: int, ranks: Any) -> Any:
    """The last step of avg. Integers are divided towards zero."""
    if layout.kind in ("float", "complex"):
        return b.fdiv(v, _spread(b, b.sitofp(ranks, layout.added), layout.added, n))
    if layout.size < 8:
        # Sums of less than 53 bits: the quotient of two float64 numbers lies on the right side of every integer.
        quotient = b.fdiv(b.sitofp(v, vector(_F64, n)), _spread(b, b.sitofp(ranks, _F64), _F64, n))
        return b.fptosi(quotient, vector(_I64, n))
    return (b.sdiv if layout.kind == "signed" else b.udiv)(v, _spread(b, ranks, _I64, n))


def _spread(b: Any, number: Any, kind: ir.Type, n: int) -> Any:
    """n times the same number."""
    if n == 1:
        return number
    none = ir.Constant(ir.VectorType(kind, n), ir.Undefined)
    one = b.insert_element(none, number, ir.Constant(_I32, 0))
    return b.shuffle_vector(one, none, splat(_I32, n, 0))


@intrinsic(prefer_literal=True)
def _loop(
    _typing: Any, dtype: Any, op: Any, last: Any, sources: Any,
    _outs: Any, _nout: Any, _ins: Any, _nin: Any, _count: Any, _ranks: Any,
) -> Any:  # fmt: skip
    dtype_name, op_name = DTYPES[dtype.literal_value], OPS[op.literal_value]
    layout, divide = LAYOUTS[dtype_name], op_name == "avg" and last.literal_value == 1
    # The sum of integers of 64 bits has no wider type to be exact in.
    exact = divide and layout.kind in ("signed", "unsigned") and layout.size < 8
    added = _I64 if exact else layout.added

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        outs, nout, ins, nin, count, ranks = args[4:]

        def number(k: int) -> Any:
            return ir.Constant(_I64, k)

        def elements(lanes: int, offset: Any) -> None:
            n = lanes * layout.parts
            stored = vector(layout.stored, n)

            def get(k: Any) -> Any:
                base = b.load(b.inttoptr(b.add(ins, b.mul(k, number(8))), _I64.as_pointer()))
                value = b.load(b.inttoptr(b.add(base, offset), stored.as_pointer()))
                value.align = layout.size
                value = widen(dtype_name, b, value, n)
                if exact:
                    extend = b.sext if layout.kind == "signed" else b.zext
                    value = extend(value, vector(_I64, n))
                return value

            total = cgutils.alloca_once(b, vector(added, n))
            b.store(get(number(0)), total)
            with cgutils.for_range(b, nin, start=number(1), intp=_I64) as k:
                b.store(_combine(op_name, layout, b, b.load(total), get(k.index), n), total)
            value = b.load(total)
            if divide:
                value = _divide(layout, b, value, n, ranks)
            if exact:
                value = b.trunc(value, vector(layout.added, n))
            value = narrow(dtype_name, b, value, n)
            with cgutils.for_range(b, nout, intp=_I64) as k:
                base = b.load(b.inttoptr(b.add(outs, b.mul(k.index, number(8))), _I64.as_pointer()))
                b.store(value, b.inttoptr(b.add(base, offset), stored.as_pointer())).align = layout.size

        lanes, size = _NUMBERS // layout.parts, layout.size * layout.parts
        full = b.udiv(count, number(lanes))
        with cgutils.for_range(b, full, intp=_I64) as k:
            elements(lanes, b.mul(k.index, number(lanes * size)))
        done = b.mul(full, number(lanes))
        with cgutils.for_range(b, b.sub(count, done), intp=_I64) as k:
            elements(1, b.mul(b.add(done, k.index), number(size)))
        return context.get_dummy_value()

    return types.void(dtype, op, last, sources, *[types.intp] * 6), generate


def _kernel(dtype: int, op: int, last: int, sources: int) -> Any:
    """The arguments become literals of the code, so that one small entry in Numba's index stands for each kernel."""

    @no_type_check
    def combine(outs, nout, ins, nin, count, ranks):
        _loop(dtype, op, last, sources, outs, nout, ins, nin, count, ranks)

    return combine


@cache
def _compiled(dtype: str, op: str, last: bool) -> Any:
    kernel = _kernel(DTYPES.index(dtype), OPS.index(op), int(last), _SOURCES)
    return cfunc(types.void(*[types.intp] * 6), cache=True)(kernel)


def named_address(dtype: str, op: str, last: bool) -> int:
    """The address of the kernel for this dtype and op, which are known to exist."""
    if op == "avg" and not last:
        op = "sum"
    return int(_compiled(dtype, op, last and op == "avg").address)
