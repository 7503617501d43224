"""Combine kernels: out = ins[0] op ins[1] op ... op ins[nin - 1], from left to right, in one pass over all outputs.

The interpreter calls a kernel by its address. Start reading at `kernels`, the code of the ops with a name, which is
kept on disk; `custom_kernels` compiles users' functions (`custom`). `conversion` converts between memory and
numbers.
"""

from pathlib import Path

import torch

from ...base.errors import DTypeError
from ...base.python import make_once
from ..machine_code import Unit
from .custom import CustomOp
from .dtypes import DTYPES, ELEMENT_TYPES, OPS, OPS_OF

__all__ = ["DTYPES", "OPS", "CustomOp", "check_combine", "combine_address"]

_ABLE = {op: tuple(dtype for dtype in DTYPES if op in OPS_OF[ELEMENT_TYPES[dtype].kind]) for op in OPS}
"""Op -> the dtypes that it combines."""

_SOURCES = [Path(__file__).with_name(f"{name}.py") for name in ("conversion", "dtypes", "kernels")]


def check_combine(dtype: str, op: str | CustomOp) -> None:
    """Raise DTypeError if elements of this dtype cannot be combined with this op. Compiles nothing.

    Only `combine_address` finds that Numba cannot compile a user's function.
    """
    if isinstance(op, CustomOp):
        name, able = op.name, DTYPES
    elif op in OPS:
        name, able = op, _ABLE[op]
    else:
        raise DTypeError(f"op: unknown op {op!r}. Use {', '.join(OPS)}, or make_op().")
    if dtype not in able:
        raise DTypeError(f"{name}: got {dtype} tensors, expected one of {', '.join(able)}. Convert the tensor first.")


def combine_address(dtype: str, op: str | CustomOp, last: bool) -> int:
    """The address of the kernel for this dtype and op. last: whether the combine completes a result.

    Compiles the kernel on first use, or loads it from disk. Raises DTypeError for a dtype and op that do not go
    together, and for a function that Numba cannot compile.
    """
    check_combine(dtype, op)
    if isinstance(op, CustomOp):
        from .custom_kernels import custom_kernel

        return int(custom_kernel(dtype, op).address)
    if op == "avg" and not last:
        op = "sum"
    return _named_address(dtype, op, last and op == "avg")


@make_once
def _named_address(dtype: str, op: str, divide: bool) -> int:
    name = f"combine.{dtype}.{op}"

    def compiled() -> bytes:
        from .kernels import object_file

        return object_file(name, dtype, op, divide=divide)

    # The float8 code of too large numbers depends on torch.
    return Unit(name, _SOURCES, compiled, torch.__version__).address()
