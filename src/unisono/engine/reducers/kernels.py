"""The kernels of the named ops: one per dtype and op, compiled on first use and kept on disk.

A kernel is a loop over LLVM vectors, then over the remaining single elements. Short floats are accumulated in float32
and rounded once. avg has a second kernel, which divides, for the combine that completes a result.
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
from .dtypes import DTYPES, ELEMENT_TYPES, ElementType, narrow, splat, vector, widen
from .float8 import FORMATS

__all__ = ["OPS", "named_address"]

_I32, _I64, _F64 = ir.IntType(32), ir.IntType(64), ir.DoubleType()
_NUMBERS = 64
"""Numbers in a vector: they fill the widest registers of a processor, and still fit into its registers."""

OPS: tuple[str, ...] = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
"""torch's names of the ops. As in torch, min and max propagate NaN, and sums and products of integers wrap. The average
of integers of less than 64 bits is that of the exact sum, and all are divided towards zero.
"""

_OF_BOOLS = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}

_SOURCES = zlib.crc32(
    repr(FORMATS).encode(), checksum(Path(__file__).with_name(f"{name}.py") for name in ("dtypes", "float8"))
)
"""What the code of a kernel depends on beside dtype, op and this file: Numba's cache on disk sees no other file."""


def _combine(op: str, element: ElementType, b: Any, x: Any, y: Any, n: int) -> Any:
    """x op y."""
    if element.kind == "bool":
        op = _OF_BOOLS.get(op, op)
    inexact = element.kind in ("float", "complex")
    if op in ("sum", "avg"):
        return b.fadd(x, y) if inexact else b.add(x, y)
    if op == "product":
        if element.kind == "complex":
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
        better = b.icmp_signed(sign, x, y) if element.kind == "signed" else b.icmp_unsigned(sign, x, y)
    return b.select(better, x, y)


def _complex_product(b: Any, x: Any, y: Any, n: int) -> Any:
    """(ac - bd) + (ad + bc) i for n / 2 complex numbers, real and imaginary parts in turn; every product is rounded."""

    def pick(v: Any, order: list[int]) -> Any:
        return b.shuffle_vector(v, v, ir.Constant(ir.VectorType(_I32, n), order))

    even = range(0, n, 2)
    real, imaginary = pick(x, [k for i in even for k in (i, i)]), pick(x, [k for i in even for k in (i + 1, i + 1)])
    minus = ir.Constant(x.type, [-1.0, 1.0] * (n // 2))
    swapped = pick(y, [k for i in even for k in (i + 1, i)])
    return b.fadd(b.fmul(real, y), b.fmul(minus, b.fmul(imaginary, swapped)))


def _divide(element: ElementType, b: Any, v: Any, n: int, ranks: Any) -> Any:
    """The last step of avg, towards zero for integers."""
    if element.kind in ("float", "complex"):
        return b.fdiv(v, _spread(b, b.sitofp(ranks, element.added), element.added, n))
    if element.size < 8:
        # Sums have less than 53 bits, so rounding a float64 quotient cannot carry it to the next integer.
        quotient = b.fdiv(b.sitofp(v, vector(_F64, n)), _spread(b, b.sitofp(ranks, _F64), _F64, n))
        return b.fptosi(quotient, vector(_I64, n))
    return (b.sdiv if element.kind == "signed" else b.udiv)(v, _spread(b, ranks, _I64, n))


def _spread(b: Any, number: Any, kind: ir.Type, n: int) -> Any:
    """A vector of n equal numbers."""
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
    element, divide = ELEMENT_TYPES[dtype_name], op_name == "avg" and last.literal_value == 1
    # There is no wider type for sums of 64-bit integers.
    exact = divide and element.kind in ("signed", "unsigned") and element.size < 8
    added = _I64 if exact else element.added

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        outs, nout, ins, nin, count, ranks = args[4:]

        def number(k: int) -> Any:
            return ir.Constant(_I64, k)

        def elements(lanes: int, offset: Any) -> None:
            n = lanes * element.parts
            stored = vector(element.stored, n)

            def get(k: Any) -> Any:
                base = b.load(b.inttoptr(b.add(ins, b.mul(k, number(8))), _I64.as_pointer()))
                value = b.load(b.inttoptr(b.add(base, offset), stored.as_pointer()))
                value.align = element.size
                value = widen(dtype_name, b, value, n)
                if exact:
                    extend = b.sext if element.kind == "signed" else b.zext
                    value = extend(value, vector(_I64, n))
                return value

            total = cgutils.alloca_once(b, vector(added, n))
            b.store(get(number(0)), total)
            with cgutils.for_range(b, nin, start=number(1), intp=_I64) as k:
                b.store(_combine(op_name, element, b, b.load(total), get(k.index), n), total)
            value = b.load(total)
            if divide:
                value = _divide(element, b, value, n, ranks)
            if exact:
                value = b.trunc(value, vector(element.added, n))
            value = narrow(dtype_name, b, value, n)
            with cgutils.for_range(b, nout, intp=_I64) as k:
                base = b.load(b.inttoptr(b.add(outs, b.mul(k.index, number(8))), _I64.as_pointer()))
                b.store(value, b.inttoptr(b.add(base, offset), stored.as_pointer())).align = element.size

        lanes, size = _NUMBERS // element.parts, element.size * element.parts
        full = b.udiv(count, number(lanes))
        with cgutils.for_range(b, full, intp=_I64) as k:
            elements(lanes, b.mul(k.index, number(lanes * size)))
        done = b.mul(full, number(lanes))
        with cgutils.for_range(b, b.sub(count, done), intp=_I64) as k:
            elements(1, b.mul(b.add(done, k.index), number(size)))
        return context.get_dummy_value()

    return types.void(dtype, op, last, sources, *[types.intp] * 6), generate


def _kernel(dtype: int, op: int, last: int, sources: int) -> Any:
    """The kernel, with the arguments as literals: Numba keys its cache by what a function closes over."""

    @no_type_check
    def combine(outs, nout, ins, nin, count, ranks):
        _loop(dtype, op, last, sources, outs, nout, ins, nin, count, ranks)

    return combine


@cache
def _compiled(dtype: str, op: str, last: bool) -> Any:
    kernel = _kernel(DTYPES.index(dtype), OPS.index(op), int(last), _SOURCES)
    return cfunc(types.void(*[types.intp] * 6), cache=True)(kernel)


def named_address(dtype: str, op: str, last: bool) -> int:
    """The address of the kernel for this dtype and op, which must go together."""
    if op == "avg" and not last:
        op = "sum"
    return int(_compiled(dtype, op, last and op == "avg").address)
