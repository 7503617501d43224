"""Load and store single elements of any dtype, in kernels that Numba compiles from Python."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .conversion import TYPES, narrow, vector, widen
from .dtypes import DTYPES, ELEMENT_TYPES

_I1, _I8, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(64)


def number_type(dtype: str) -> Any:
    """The Numba type of an element in a function: float32 for all shorter floats."""
    element = ELEMENT_TYPES[dtype]
    if element.kind == "bool":
        return types.boolean
    return types.float32 if element.added == "float" and element.parts == 1 else getattr(types, dtype)


def _place(b: Any, dtype: str, base: Any, k: Any) -> Any:
    """A pointer to element k after an address. LLVM can vectorise loops over getelementptr, not over integers."""
    element = ELEMENT_TYPES[dtype]
    first = b.inttoptr(base, _I8.as_pointer())
    place = b.gep(first, [b.mul(k, ir.Constant(_I64, element.size * element.parts))])
    return b.bitcast(place, vector(TYPES[element.stored], element.parts).as_pointer())


@intrinsic(prefer_literal=True)
def load(_typing: Any, dtype: Any, base: Any, k: Any) -> Any:
    """load(dtype, base, k): element k after the address `base`, as a number. dtype: its index in DTYPES."""
    name = DTYPES[dtype.literal_value]
    element, number = ELEMENT_TYPES[name], number_type(name)

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        value = b.load(_place(b, name, *args[1:]))
        value.align = element.size
        value = widen(name, b, value, element.parts)
        if element.kind == "bool":
            return b.trunc(value, _I1)
        if element.kind == "complex":
            pair = context.make_helper(b, number)
            pair.real, pair.imag = (b.extract_element(value, ir.Constant(_I64, part)) for part in (0, 1))
            return pair._getvalue()  # noqa: SLF001  Numba's public name for it
        return value

    return number(dtype, base, k), generate


@intrinsic(prefer_literal=True)
def store(_typing: Any, dtype: Any, base: Any, k: Any, _value: Any) -> Any:
    """store(dtype, base, k, number): store a number, rounded once, as element k after the address `base`."""
    name = DTYPES[dtype.literal_value]
    element, number = ELEMENT_TYPES[name], number_type(name)

    def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
        value = args[3]
        if element.kind == "bool":
            value = b.zext(value, _I8)
        if element.kind == "complex":
            pair = context.make_helper(b, number, value)
            value = ir.Constant(vector(TYPES[element.added], 2), ir.Undefined)
            for part, of_pair in enumerate((pair.real, pair.imag)):
                value = b.insert_element(value, of_pair, ir.Constant(_I64, part))
        value = narrow(name, b, value, element.parts)
        b.store(value, _place(b, name, *args[1:3])).align = element.size
        return context.get_dummy_value()

    return types.void(dtype, base, k, number), generate


@intrinsic
def word(_typing: Any, base: Any, k: Any) -> Any:
    """word(base, k): word k of the table of addresses at `base`."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        return b.load(b.gep(b.inttoptr(args[0], _I64.as_pointer()), [args[1]]))

    return types.intp(base, k), generate
