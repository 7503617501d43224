"""The kernels that Numba compiles from custom ops that work element by element.

They are not kept on disk: what a function does depends on more than its own file. Numba never gives the memory of code
back, so kernels are kept as long as the process lives, and a process that compiles ever new ones is warned.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any, no_type_check

import numpy as np
from numba import cfunc, njit, types

from ...base.errors import DTypeError
from ..once import once
from ..process.nested import user_line
from .custom import CustomOp
from .dtypes import DTYPES
from .elements import load, number_type, store, word

_BLOCK = 256
"""Elements per block. A block is combined with one input after the other, in loops that LLVM can vectorise."""

_MANY = 200
"""After so many kernels, which take some 400 MB and a minute and a half, a process is warned."""
_compiled_ops: list[str] = []


def _kernel(step: Any, dtype: int, number: Any) -> Any:
    @no_type_check
    def combine(outs, nout, ins, nin, count, _ranks):
        total = np.empty(_BLOCK, number)
        for first in range(0, count, _BLOCK):
            n = min(_BLOCK, count - first)
            base = word(ins, 0)
            for i in range(n):
                total[i] = load(dtype, base, first + i)
            for k in range(1, nin):
                base = word(ins, k)
                for i in range(n):
                    total[i] = step(total[i], load(dtype, base, first + i))
            for k in range(nout):
                base = word(outs, k)
                for i in range(n):
                    store(dtype, base, first + i, total[i])

    return combine


@once
def _compiled(dtype: str, op: CustomOp) -> Any:
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
        raise _no_kernel(op, dtype, "it may raise an exception, and a kernel cannot")
    kernel = cfunc(types.void(*[types.intp] * 6))(_kernel(step, DTYPES.index(dtype), number))
    _compiled_ops.append(op.name)
    if len(_compiled_ops) == _MANY:
        _warn()
    return kernel


def _warn() -> None:
    """Say that the code of custom ops grows without end."""
    (name, times), *_ = Counter(_compiled_ops).most_common()
    where = user_line(sys._getframe(1))  # noqa: SLF001  the documented way to look at one's callers
    warnings.warn(
        f"this process has compiled {_MANY} kernels of custom ops, {times} of them for {name!r}, the last one "
        f"at {where}: each takes half a second and 2 MB, which are never given back. An op whose function has other "
        "values in its closure, defaults or globals is a new op: make each op once, and scale tensors outside of it",
        RuntimeWarning,
        stacklevel=2,
    )


def _in_python(function: Any) -> Callable[[Any, Any], Any]:
    """A Python function, which Numba can compile, that calls one in C, such as math.gcd."""

    def call(x: Any, y: Any) -> Any:
        return function(x, y)

    return call


def _no_kernel(op: CustomOp, dtype: str, reason: str) -> DTypeError:
    return DTypeError(
        f"op {op.name}: Numba can make no kernel for {dtype} elements of this function: {reason}. "
        "Write it with numbers and math alone, or pass elementwise=False and a function of whole tensors"
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


def custom_address(dtype: str, op: CustomOp) -> int:
    """The address of the kernel for this dtype and op. Compiles it on first use.

    Raises DTypeError for a function that Numba cannot compile.
    """
    return int(_compiled(dtype, op).address)
