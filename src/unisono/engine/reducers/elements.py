"""Single elements of any dtype, for kernels written in Python: from memory to Numba's numbers, and back."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .dtypes import DTYPES, LAYOUTS, narrow, vector, widen

__all__ = ["load", "number_type", "store", "word"]

_I1, _I8, _F32, _I64 = ir.IntType(1), ir.IntType(8), ir.FloatType(), ir.IntType(64)


def number_type(dtype: str) -> Any:
    """The type of Numba that elements of a dtype have in a function: float32 for all shorter floats."""
    layout = LAYOUTS[dtype]
    if layout.kind == "bool":
        return types.boolean
    return types.float32 if layout.added == _F32 and layout.parts == 1 else getattr(types, dtype)


def _place(b: Any, dtype: str, base: Any, k: Any) -> Any:
    """Element k from an address on. Said as a step from a pointer, it lets LLVM see where a loop goes."""
    layout = LAYOUTS[dtype]
    first = b.inttoptr(base, _I8.as_pointer())
    place = b.gep(first, [b.mul(k, ir.Constant(_I64, layout.size * layout.parts))])
    return b.bitcast(place, vector(layout.stored, layout.parts).as_pointer())


@intrinsic(prefer_literal=True)
def load(_typing: Any, dtype: Any, base: Any, k: Any) -> Any:
    """load(dtype, base, k): the number that element k from an address on is. dtype: its index in DTYPES."""
    name = DTYPES[dtype.literal_value]
    layout, number = LAYOUTS[name], number_type(name)

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        value = b.load(_place(b, name, *args[1:]))
        value.align = layout.size
        value = widen(name, b, value, layout.parts)
        if layout.kind == "bool":
            return b.trunc(value, _I1)
        if layout.kind == "complex":
            pair = context.make_helper(b, number)
            pair.real, pair.imag = (b.extract_element(value, ir.Constant(_I64, part)) for part in (0, 1))
            return pair._getvalue()  # noqa: SLF001  that is what it is called
        return value

    return number(dtype, base, k), generate


@intrinsic(prefer_literal=True)
def store(_typing: Any, dtype: Any, base: Any, k: Any, _value: Any) -> Any:
    """store(dtype, base, k, number): the way back, rounded once."""
    name = DTYPES[dtype.literal_value]
    layout, number = LAYOUTS[name], number_type(name)

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        value = args[3]
        if layout.kind == "bool":
            value = b.zext(value, _I8)
        if layout.kind == "complex":
            pair = context.make_helper(b, number, value)
            value = ir.Constant(vector(layout.added, 2), ir.Undefined)
            for part, of_pair in enumerate((pair.real, pair.imag)):
                value = b.insert_element(value, of_pair, ir.Constant(_I64, part))
        value = narrow(name, b, value, layout.parts)
        b.store(value, _place(b, name, *args[1:3])).align = layout.size
        return context.get_dummy_value()

    return types.void(dtype, base, k, number), generate


@intrinsic
def word(_typing: Any, base: Any, k: Any) -> Any:
    """word(base, k): word k of a table of addresses."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.load(b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]))

    return types.intp(base, k), generate
