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
_CHOICE = f"Use one of {', '.join(OPS)}, premul_sum(factor) or make_op(function)"


class PremulSum(NamedTuple):
    """The sum of each rank's input times the rank's own factor. Made by `premul_sum`."""

    factor: float

    @property
    def text(self) -> str:
        """The op as text, without the factor, because the ranks' factors may differ."""
        return "premul_sum"


def premul_sum(factor: float | torch.Tensor) -> PremulSum:
    """Make an op that multiplies each rank's tensor by `factor` and then sums.

    Args:
        factor: A number, or a real tensor with one element. Ranks may pass different factors.

    Raises:
        ArgumentError, DTypeError: The factor is not a real number.
    """
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ArgumentError(f"factor: got a tensor with {factor.numel()} elements, expected one number")
        factor = factor.item()
    if not isinstance(factor, int | float):
        raise DTypeError(f"factor: got {type(factor).__name__}, expected a real number")
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
    """Make an op from a Python function of two numbers, such as `make_op(lambda x, y: max(abs(x), abs(y)))`.

    Numba compiles a kernel for each function and dtype at first use, in half a second. It takes 2 MB, which the process
    never frees, so make each op once and not for each call; after 200 kernels there is a warning. Equal functions (the
    same code, with the same values in closure, defaults and globals) share a kernel.

    Args:
        function: Takes two numbers and returns one. float16, bfloat16 and float8 are passed as float32; each result is
            rounded to the tensor's dtype. Division by zero gives the same as in NumPy. The function, and the values
            that it uses, must be the same on all ranks. For functions of whole tensors use `all_gather`.
        commutative: Algorithms may swap the inputs. If False, they are combined in rank order.
        associative: Algorithms may group the inputs. If False, they are combined one by one.
        name: Shown in errors. None: the function's name.

    Returns:
        The op, for the `op` argument of collectives.

    Raises:
        DTypeError: `function` cannot be called. A collective raises it if Numba cannot compile the function, or if the
            function may raise an exception.
    """
    if not callable(function):
        raise DTypeError(f"function: got {type(function).__name__}, expected a function of two arguments")
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
            raise ArgumentError(f"op: unknown op {op!r}. {_CHOICE}.")
        return name
    if isinstance(op, PremulSum | CustomOp):
        return op
    kind = getattr(op, "op", op)  # torch's ops are members of RedOpType, some of them in a ReduceOp
    is_torch = type(kind).__name__ == "RedOpType"
    if op is premul_sum or (is_torch and kind is op and kind.name == "PREMUL_SUM"):
        raise ArgumentError("op: PREMUL_SUM needs a factor. Use premul_sum(factor).")
    if is_torch:
        # The factor is in the state for pickle.
        return premul_sum(op.__getstate__()[1]) if kind.name == "PREMUL_SUM" else resolve(kind.name)
    if callable(op):
        raise DTypeError(f"op: got {op!r}, a function. Pass make_op(function).")
    raise DTypeError(f"op: {op!r} is not a reduce op. {_CHOICE}.")


def check_op_dtype(op: str | PremulSum | CustomOp, dtype: str) -> None:
    """Raise DTypeError if tensors of this dtype (torch's name) cannot be combined with this op."""
    if isinstance(op, PremulSum):
        if dtype not in _SCALED:
            raise DTypeError(
                f"premul_sum: got {dtype} tensors, expected one of {', '.join(_SCALED)}. Convert the tensor first."
            )
    else:
        check_combine(dtype, op)
