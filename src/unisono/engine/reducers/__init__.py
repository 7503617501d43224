"""Combine kernels: outs[0 .. nout) = ins[0] op ins[1] op ... op ins[nin - 1], in one pass, in this order.

The interpreter calls a kernel by its address. Start reading at `kernels`; `dtypes` and `float8` say how elements lie
in memory, `custom` makes kernels of users' functions, `identity` tells these apart.
"""

from __future__ import annotations

from ...errors import DTypeError
from .custom import CustomOp, custom_address
from .dtypes import DTYPES, LAYOUTS, OPS_OF
from .kernels import OPS, named_address

__all__ = ["DTYPES", "OPS", "CustomOp", "check_combine", "combine_address"]


def check_combine(dtype: str, op: str | CustomOp) -> None:
    """Raise a DTypeError if elements of this dtype cannot be combined with this op. Compiles nothing.

    A function of a user's own can still be one that Numba cannot compile: `combine_address` finds that.
    """
    if isinstance(op, CustomOp):
        name, able = op.name, DTYPES
    elif op in OPS:
        name, able = op, tuple(dtype for dtype in DTYPES if op in OPS_OF[LAYOUTS[dtype].kind])
    else:
        raise DTypeError(f"there is no op {op!r}; there is {', '.join(OPS)}, and what make_op makes")
    if dtype not in able:
        raise DTypeError(f"there is no {name} of {dtype} tensors, only of {', '.join(able)}: convert the tensor first")


def combine_address(dtype: str, op: str | CustomOp, last: bool) -> int:
    """The address of the kernel for this dtype and op; `last`: the combine that completes a result.

    Compiles it at first use, or takes it from disk. Raises DTypeError for a pair that does not exist, and for a
    function that Numba cannot compile.
    """
    check_combine(dtype, op)
    return custom_address(dtype, op) if isinstance(op, CustomOp) else named_address(dtype, op, last)
