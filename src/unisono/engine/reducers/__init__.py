"""Combine kernels: out = ins[0] op ins[1] op ... op ins[nin - 1], from left to right, in one pass over all outputs.

The interpreter calls a kernel by its address. Start reading at `kernels`, the code of the ops with a name, which
`named` keeps on disk; `custom_kernels` compiles users' functions (`custom`), which `function_identity` compares.
`conversion`, `float8` and `elements` convert between memory and numbers.
"""

from __future__ import annotations

from ...base.errors import DTypeError
from .custom import CustomOp
from .dtypes import DTYPES, ELEMENT_TYPES, OPS, OPS_OF
from .named import named_address

__all__ = ["DTYPES", "OPS", "CustomOp", "check_combine", "combine_address"]

_ABLE = {op: tuple(dtype for dtype in DTYPES if op in OPS_OF[ELEMENT_TYPES[dtype].kind]) for op in OPS}
"""Op -> the dtypes that it combines."""


def check_combine(dtype: str, op: str | CustomOp) -> None:
    """Raise DTypeError if elements of this dtype cannot be combined with this op. Compiles nothing.

    Only `combine_address` finds that Numba cannot compile a user's function.
    """
    if isinstance(op, CustomOp):
        name, able = op.name, DTYPES
    elif op in OPS:
        name, able = op, _ABLE[op]
    else:
        raise DTypeError(f"there is no op {op!r}; there is {', '.join(OPS)}, and what make_op makes")
    if dtype not in able:
        raise DTypeError(f"there is no {name} of {dtype} tensors, only of {', '.join(able)}: convert the tensor first")


def combine_address(dtype: str, op: str | CustomOp, last: bool) -> int:
    """The address of the kernel for this dtype and op. last: whether the combine completes a result.

    Compiles the kernel on first use, or loads it from disk. Raises DTypeError for a dtype and op that do not go
    together, and for a function that Numba cannot compile.
    """
    check_combine(dtype, op)
    if isinstance(op, CustomOp):
        from .custom_kernels import custom_address

        return custom_address(dtype, op)
    return named_address(dtype, op, last)
