"""The expected result of each collective, in a few lines of torch. Inputs are not changed."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from unisono.calls.arguments import check_op
from unisono.calls.ops import OpLike, PremulSum
from unisono.engine.reducers import CustomOp

_INTEGERS: dict[str, Any] = {
    "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
"""numpy's functions, since torch lacks most for uint16, uint32 and uint64. They wrap; the sum of bools is "or"."""

_FLOATS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": lambda x, y: _complex_product(x, y) if x.is_complex() else x * y,
    # Of two equal values (0 and -0) the later is kept, of several NaNs the first.
    "min": lambda x, y: torch.where((x < y) | x.isnan(), x, y),
    "max": lambda x, y: torch.where((x > y) | x.isnan(), x, y),
}


def combine(tensors: Sequence[torch.Tensor], op: OpLike = "sum") -> torch.Tensor:
    """Return ((tensors[0] op tensors[1]) op tensors[2]) ... for tensors of one shape and dtype.

    float16, bfloat16 and float8 are accumulated in float32 and rounded once. The average of integers is their exact sum
    (which wraps for 64 bits), divided and truncated towards zero.
    """
    op, dtype = check_op(op, tensors[0]), tensors[0].dtype
    if isinstance(op, PremulSum):
        return combine([tensor * op.factor for tensor in tensors])
    if dtype.is_floating_point and dtype.itemsize < 4:
        return combine([tensor.float() for tensor in tensors], op).to(dtype)
    if isinstance(op, CustomOp):
        return functools.reduce(lambda x, y: _number_by_number(op, x, y), tensors)
    if op == "avg":
        return _average(tensors)
    if dtype.is_floating_point or dtype.is_complex:
        return functools.reduce(_FLOATS[op], tensors)
    total = functools.reduce(_INTEGERS[op], [tensor.flatten().numpy() for tensor in tensors])
    return torch.from_numpy(total).view(tensors[0].shape)


def _average(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    dtype, ranks = tensors[0].dtype, len(tensors)
    if dtype.is_complex:
        total = combine(tensors)
        return torch.complex(total.real / ranks, total.imag / ranks)
    if dtype.is_floating_point:
        return combine(tensors) / ranks
    if dtype.itemsize == 8:  # the sum may need more bits than torch has
        totals = [sum(numbers) for numbers in zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)]
        quotients = [abs(total) // ranks * (1 if total > 0 else -1) for total in totals]
        return torch.tensor(quotients, dtype=dtype, device="cpu").view(tensors[0].shape)
    return torch.div(combine([tensor.long() for tensor in tensors]), ranks, rounding_mode="trunc").to(dtype)


def _complex_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Round each product separately: torch's own result differs in bits between long and short tensors."""
    return torch.complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _number_by_number(op: CustomOp, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Apply a function to each pair of elements. Integers are passed as Python's, and results wrap."""
    kind = x.numpy().dtype
    inexact = kind.kind in "fc"
    pairs = zip(*(list(t.flatten().numpy()) if inexact else t.flatten().tolist() for t in (x, y)), strict=True)
    with np.errstate(all="ignore"):
        results = [op.function(a, b) if inexact else int(op.function(a, b)) % 2**64 for a, b in pairs]
    return torch.from_numpy(np.array(results, kind if inexact else np.uint64).astype(kind)).view(x.shape)


def expected(
    collective: str, tensors: Sequence[torch.Tensor], op: OpLike, root: int, sizes: Sequence[Sequence[int]]
) -> list[torch.Tensor | None]:
    """What each rank ends with, of flat tensors of all ranks; blocks are concatenated in rank order.

    sizes: the elements of the block from each rank (row) to each other (column).
    """
    ranks = range(len(tensors))
    match collective:
        case "all_reduce":
            return [combine(tensors, op) for _ in ranks]
        case "reduce":
            return [combine(tensors, op) if rank == root else tensors[rank] for rank in ranks]
        case "scan":
            return [combine(tensors[: rank + 1], op) for rank in ranks]
        case "exscan":
            return [combine(tensors[:rank], op) if rank else tensors[0] for rank in ranks]
        case "broadcast":
            return [tensors[root] for _ in ranks]
        case "gather":
            return [torch.cat([*tensors]) if rank == root else None for rank in ranks]
        case "all_gather":
            return [torch.cat([*tensors]) for _ in ranks]
        case "scatter":
            return [*torch.split(tensors[root], [*sizes[root]])]
    rows = [torch.split(tensor, [*row]) for tensor, row in zip(tensors, sizes, strict=True)]
    columns = [*zip(*rows, strict=True)]
    return [combine(column, op) if collective == "reduce_scatter" else torch.cat(column) for column in columns]
