"""The kernels that Numba compiles from custom ops that work element by element, and how they load and store elements.

They are not kept on disk: a function depends on more than its own file. Numba never gives the memory of code back. So
kernels are kept as long as the process lives, and a process that compiles ever new ones is warned.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from ...base.errors import DTypeError
from ...base.python import make_once
from ..kernels.atomics import load as load_word
from ..process.nested import caller
from .conversion import TYPES, narrow, vector, widen
from .custom import CustomOp
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


_TILE = 256
"""Elements per tile. A tile is combined with one input after the other, in loops that LLVM can vectorise."""

_MANY = 200  # a process is warned after this number of kernels, which take some 400 MB and a minute and a half
_compiled_ops: list[str] = []


def _kernel(step: Any, dtype: int, number: Any) -> Any:
    @no_type_check
    def combine(outs, nout, ins, nin, count, _ranks):
        total = np.empty(_TILE, number)
        for first in range(0, count, _TILE):
            n = min(_TILE, count - first)
            base = load_word(ins)
            for i in range(n):
                total[i] = load(dtype, base, first + i)
            for k in range(1, nin):
                base = load_word(ins + 8 * k)
                for i in range(n):
                    total[i] = step(total[i], load(dtype, base, first + i))
            for k in range(nout):
                base = load_word(outs + 8 * k)
                for i in range(n):
                    store(dtype, base, first + i, total[i])

    return combine


@make_once
def custom_kernel(dtype: str, op: CustomOp) -> Any:
    """The kernel for this dtype and op. Raises DTypeError for a function that Numba cannot compile."""
    number, function = number_type(dtype), getattr(op.function, "py_func", op.function)
    # As in numpy, a division by zero gives inf or 0, where Python would raise.
    step = njit(function if isinstance(function, FunctionType) else _in_python(function), error_model="numpy")
    try:
        step.compile((number, number))
    except Exception as error:
        raise _no_kernel(op, dtype, _first_reason(error)) from error
    compiled = step.overloads[number, number]
    result = compiled.signature.return_type
    allowed = types.Number if isinstance(number, types.Complex) else types.Integer | types.Float
    if not isinstance(result, allowed | types.Boolean):
        raise _no_kernel(op, dtype, f"it returns {result} for two {number}")
    if _may_raise(compiled):
        raise _no_kernel(op, dtype, "it may raise an exception, which a kernel cannot")
    kernel = cfunc(types.void(*[types.intp] * 6))(_kernel(step, DTYPES.index(dtype), number))
    _compiled_ops.append(op.name)
    if len(_compiled_ops) == _MANY:
        _warn()
    return kernel


def _warn() -> None:
    """Say that the code of custom ops grows without end."""
    (name, times), *_ = Counter(_compiled_ops).most_common()
    where = caller()
    warnings.warn(
        f"this process has compiled {_MANY} kernels of custom ops, {times} of them for {name!r}, the last one "
        f"at {where}. Each takes half a second and 2 MB, which are never freed. A function with other values in its "
        "closure, defaults or globals is a new op. Make each op once, and scale tensors outside of it.",
        RuntimeWarning,
        stacklevel=2,
    )


def _in_python(function: Any) -> Callable[[Any, Any], Any]:
    """A Python function that calls one in C, such as math.gcd. Numba can compile it."""

    def call(x: Any, y: Any) -> Any:
        return function(x, y)

    return call


def _no_kernel(op: CustomOp, dtype: str, reason: str) -> DTypeError:
    return DTypeError(
        f"op {op.name}: Numba cannot compile this function for {dtype} elements: {reason}. Use only numbers and math "
        "in it."
    )


def _first_reason(error: Exception) -> str:
    """The first line of a Numba error that is not a headline."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()]
    return next((line.rstrip(".:") for line in lines if line and not line.startswith("Failed in ")), repr(error))


def _may_raise(compiled: Any) -> bool:
    """Whether the compiled function can raise anywhere. An exception would end a kernel half way."""
    name, code = re.escape(compiled.fndesc.llvm_func_name), compiled.library.get_llvm_str()
    body = re.search(rf'define [^\n]*@"?{name}"?\([^\n]*\n(.*?)\n}}', code, re.DOTALL)
    return body is None or "excinfo" in body[1]
