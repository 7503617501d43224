"""The code of the kernels of named ops, one per dtype and op. LLVM compiles it; Numba is not needed.

A kernel is a loop over LLVM vectors, then over the remaining single elements. Short floats are accumulated in float32
and rounded once. avg has a second kernel, which divides, for the combine that completes a result.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from ..machine_code import object_code, symbol
from .conversion import TYPES, narrow, splat, vector, widen
from .dtypes import ELEMENT_TYPES, ElementType

_I32, _I64, _I128, _F64 = ir.IntType(32), ir.IntType(64), ir.IntType(128), ir.DoubleType()
_NUMBERS = 64  # numbers in a vector: they fill the widest registers of a processor, and still fit into its registers

_OF_BOOLS = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}


def _combine(op: str, element: ElementType, b: Any, x: Any, y: Any, n: int) -> Any:
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
        return b.fdiv(v, _spread(b, b.sitofp(ranks, TYPES[element.added]), TYPES[element.added], n))
    if element.size == 8:
        return _divide_wide(element, b, v, n, ranks)
    # Sums have less than 53 bits, so rounding a float64 quotient cannot carry it to the next integer.
    quotient = b.fdiv(b.sitofp(v, vector(_F64, n)), _spread(b, b.sitofp(ranks, _F64), _F64, n))
    return b.fptosi(quotient, vector(_I64, n))


def _divide_wide(element: ElementType, b: Any, v: Any, n: int, ranks: Any) -> Any:
    """Divide sums of 128 bits, 32 bits of the quotient at a time: no processor divides such numbers in one step."""
    wide, narrow_to = vector(_I128, n), vector(_I64, n)
    negative = b.icmp_signed("<", v, splat(_I128, n, 0)) if element.kind == "signed" else None
    size = v if negative is None else b.select(negative, b.sub(splat(_I128, n, 0), v), v)
    ranks, low_bits = _spread(b, ranks, _I64, n), splat(_I64, n, 32)
    high = b.trunc(b.lshr(size, splat(_I128, n, 32)), narrow_to)
    low = b.trunc(b.and_(size, splat(_I128, n, (1 << 32) - 1)), narrow_to)
    rest = b.or_(b.shl(b.urem(high, ranks), low_bits), low)
    quotient = b.zext(b.add(b.shl(b.udiv(high, ranks), low_bits), b.udiv(rest, ranks)), wide)
    return quotient if negative is None else b.select(negative, b.sub(splat(_I128, n, 0), quotient), quotient)


def _spread(b: Any, number: Any, kind: ir.Type, n: int) -> Any:
    if n == 1:
        return number
    none = ir.Constant(ir.VectorType(kind, n), ir.Undefined)
    one = b.insert_element(none, number, ir.Constant(_I32, 0))
    return b.shuffle_vector(one, none, splat(_I32, n, 0))


def object_file(name: str, dtype: str, op: str, *, divide: bool) -> bytes:
    """Compile the kernel of a dtype and op, kernel(outs, nout, ins, nin, count, ranks). divide: by the ranks, last."""
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64] * 6), symbol(name))
    b = ir.IRBuilder(function.append_basic_block())
    _generate(b, dtype, op, divide, function.args)
    b.ret_void()
    return object_code(llvm.parse_assembly(str(module)))


def _generate(b: Any, dtype: str, op: str, divide: bool, args: Any) -> None:
    """A loop over vectors, then one over the remaining elements."""
    outs, nout, ins, nin, count, ranks = args
    element = ELEMENT_TYPES[dtype]
    exact = divide and element.kind in ("signed", "unsigned")
    added = TYPES[element.added] if not exact else _I64 if element.size < 8 else _I128

    def elements(lanes: int, offset: Any) -> None:
        n = lanes * element.parts
        stored = vector(TYPES[element.stored], n)

        def place(table: Any, k: Any) -> Any:
            base = b.load(b.inttoptr(b.add(table, b.mul(k, _number(8))), _I64.as_pointer()))
            return b.inttoptr(b.add(base, offset), stored.as_pointer())

        def get(k: Any) -> Any:
            value = b.load(place(ins, k))
            value.align = element.size
            value = widen(dtype, b, value, n)
            if exact:
                extend = b.sext if element.kind == "signed" else b.zext
                value = extend(value, vector(added, n))
            return value

        with b.goto_entry_block():
            total = b.alloca(vector(added, n))
        b.store(get(_number(0)), total)
        with _loop(b, _number(1), nin) as k:
            b.store(_combine(op, element, b, b.load(total), get(k), n), total)
        value = b.load(total)
        if divide:
            value = _divide(element, b, value, n, ranks)
        if exact:
            value = b.trunc(value, vector(TYPES[element.added], n))
        value = narrow(dtype, b, value, n)
        with _loop(b, _number(0), nout) as k:
            b.store(value, place(outs, k)).align = element.size

    lanes, size = (8 if added == _I128 else _NUMBERS) // element.parts, element.size * element.parts
    full = b.udiv(count, _number(lanes))
    with _loop(b, _number(0), full) as k:
        elements(lanes, b.mul(k, _number(lanes * size)))
    done = b.mul(full, _number(lanes))
    with _loop(b, done, count) as k:
        elements(1, b.mul(k, _number(size)))


def _number(k: int) -> ir.Constant:
    return ir.Constant(_I64, k)


@contextmanager
def _loop(b: Any, start: Any, stop: Any) -> Iterator[Any]:
    """The body of a loop over start <= k < stop."""
    test, body, end = (b.append_basic_block() for _ in range(3))
    before = b.block
    b.branch(test)
    b.position_at_end(test)
    k = b.phi(_I64)
    k.add_incoming(start, before)
    b.cbranch(b.icmp_signed("<", k, stop), body, end)
    b.position_at_end(body)
    yield k
    k.add_incoming(b.add(k, _number(1)), b.block)
    b.branch(test)
    b.position_at_end(end)
