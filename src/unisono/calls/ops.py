"""Reduce ops as users pass them: names, torch's ReduceOp, premultiplied sums, functions of their own."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, Union

import torch
from torch.distributed import ReduceOp as TorchReduceOp

from ..base.errors import ArgumentError, DTypeError
from ..base.units import text
from ..engine.reducers import OPS, CustomOp, check_combine

_SCALED = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
"""The dtypes that have a premultiplied sum."""

_NAMES = {**{name: name for name in OPS}, "mul": "product", "prod": "product", "mean": "avg"}
_CHOICE = f"use one of {', '.join(OPS)}, premul_sum(factor) or make_op(function)"


class PremulSum(NamedTuple):
    """The sum of each rank's input times the rank's own factor. Made by `premul_sum`."""

    factor: float

    @property
    def text(self) -> str:
        """The op as text, without the factor, because the ranks' factors may differ."""
        return "premul_sum"


def premul_sum(factor: float | torch.Tensor) -> PremulSum:
    """Multiply each rank's input with `factor`, then sum. The ranks' factors may differ.

    factor: a number, or a real tensor with one element. Raises ArgumentError or DTypeError for anything else.
    """
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ArgumentError(f"factor: expected one number, got a tensor with {factor.numel()} elements")
        factor = factor.item()
    if not isinstance(factor, int | float):
        raise DTypeError(f"factor: expected a real number, got {type(factor).__name__}")
    return PremulSum(float(factor))


OpLike: TypeAlias = Union[str, PremulSum, CustomOp, "TorchReduceOp", "TorchReduceOp.RedOpType"]
"""What calls accept as op: a name such as "sum", the result of `premul_sum` or `make_op`, or torch's ReduceOp."""


class ReduceOp:
    """The ops by torch's names. `PREMUL_SUM` needs a factor: `ReduceOp.PREMUL_SUM(0.5)`."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"
    PREMUL_SUM = staticmethod(premul_sum)


def make_op(
    function: Callable[[Any, Any], Any],
    *,
    commutative: bool = False,
    associative: bool = True,
    name: str | None = None,
) -> CustomOp:
    """An op of your own: `make_op(lambda x, y: max(abs(x), abs(y)))`.

    function: (x, y) -> z on numbers, which Numba compiles for each dtype at first use. float16, bfloat16 and float8 are
    passed as float32 and rounded once per combine; each result is converted to x's type. Dividing by zero gives what
    numpy gives. Values that the function uses must be the same on all ranks. For a function of whole tensors, such as a
    product of matrices, use `all_gather` and combine the tensors.
    commutative, associative: properties that algorithms may rely on. Inputs are combined from left to right in rank
    order; in one pass unless the function is associative.
    name: for messages; by default the function's name.

    Equal functions share a kernel: the same code with the same values in closure, defaults and globals. A new one costs
    half a second and 2 MB for each dtype, which a process never gives back: make each op once, not anew for each call.
    A process is warned when it has compiled 200 kernels.

    Every rank makes the op of the same function. Raises DTypeError if it is no function. A call with a function that
    Numba cannot compile, or that may raise an exception, raises DTypeError.
    """
    if not callable(function):
        raise DTypeError(f"function: expected a function of two arguments, got {type(function).__name__}")
    if name is None:
        name = str(getattr(function, "__name__", type(function).__name__)).strip("<>")
    text("name", name)
    return CustomOp(function, name, commutative, associative)


def resolve(op: Any) -> str | PremulSum | CustomOp:
    """Convert an op to one form: "SUM", ReduceOp.SUM and torch.distributed.ReduceOp.SUM become "sum".

    Accepts the names in OPS in any case, mul, prod and mean; torch's ops, premultiplied sums included; results of
    `premul_sum` and `make_op`. Raises ArgumentError for an unknown name, DTypeError for an unknown type.
    """
    if isinstance(op, str):
        name = _NAMES.get(op) or _NAMES.get(op.lower())
        if name is None:
            raise ArgumentError(f"op: unknown op {op!r}; {_CHOICE}")
        return name
    if isinstance(op, PremulSum | CustomOp):
        return op
    kind = getattr(op, "op", op)  # torch's ops are members of RedOpType, some of them in a ReduceOp
    is_torch = type(kind).__name__ == "RedOpType"
    if op is premul_sum or (is_torch and kind is op and kind.name == "PREMUL_SUM"):
        raise ArgumentError("op: PREMUL_SUM needs a factor; use premul_sum(factor)")
    if is_torch:
        # The factor is in the state for pickle.
        return premul_sum(op.__getstate__()[1]) if kind.name == "PREMUL_SUM" else resolve(kind.name)
    if callable(op):
        raise DTypeError(f"op: {op!r} is a function; pass make_op(function)")
    raise DTypeError(f"op: {op!r} is not a reduce op; {_CHOICE}")


def check_op_dtype(op: str | PremulSum | CustomOp, dtype: str) -> None:
    """Raise DTypeError if tensors of this dtype (torch's name) cannot be combined with this op."""
    if isinstance(op, PremulSum):
        if dtype not in _SCALED:
            raise DTypeError(
                f"premul_sum does not take {dtype} tensors, only {', '.join(_SCALED)}: convert the tensor first"
            )
    else:
        check_combine(dtype, op)
