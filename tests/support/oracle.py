"""The expected result of each collective, in a few lines of torch.

Every function takes the inputs of all ranks, in rank order, and returns the results of all ranks, in rank order: one
tensor per rank, blocks concatenated in rank order, None for a rank that gets nothing. Inputs are not changed.

op: any that the calls take. sizes: the number of elements of each rank's block, or for all_to_all of the block from
each rank (row) to each other (column); without them all blocks have the same size.
"""

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
        return functools.reduce(lambda x, y: _number_by_number(op, x, y), tensors).clone()
    if op == "avg":
        return _average(tensors)
    if dtype.is_floating_point or dtype.is_complex:
        return functools.reduce(_FLOATS[op], tensors).clone()
    total = functools.reduce(_INTEGERS[op], [tensor.flatten().numpy() for tensor in tensors])
    return torch.from_numpy(total).view(tensors[0].shape).clone()


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


def all_reduce(tensors: Sequence[torch.Tensor], op: OpLike = "sum") -> list[torch.Tensor]:
    """Every rank gets the combination of all tensors."""
    return [combine(tensors, op) for _ in tensors]


def reduce(tensors: Sequence[torch.Tensor], dst: int, op: OpLike = "sum") -> list[torch.Tensor]:
    """Rank `dst` gets the combination of all tensors; the others keep their own."""
    return [combine(tensors, op) if rank == dst else tensor.clone() for rank, tensor in enumerate(tensors)]


def scan(tensors: Sequence[torch.Tensor], op: OpLike = "sum") -> list[torch.Tensor]:
    """Rank r gets the combination of the tensors of ranks 0 to r."""
    return [combine(tensors[: rank + 1], op) for rank in range(len(tensors))]


def exscan(tensors: Sequence[torch.Tensor], op: OpLike = "sum") -> list[torch.Tensor]:
    """Rank r gets the combination of the tensors of ranks 0 to r - 1; rank 0 keeps its own."""
    return [combine(tensors[:rank], op) if rank else tensors[0].clone() for rank in range(len(tensors))]


def broadcast(tensors: Sequence[torch.Tensor], src: int) -> list[torch.Tensor]:
    """Every rank gets the tensor of rank `src`."""
    return [tensors[src].clone() for _ in tensors]


def scatter(tensors: Sequence[torch.Tensor | None], src: int, sizes: Sequence[int] | None = None) -> list[torch.Tensor]:
    """Rank r gets block r of the tensor of rank `src`; the tensors of other ranks are ignored."""
    whole = tensors[src]
    assert whole is not None
    return _blocks(whole, len(tensors), sizes)


def gather(tensors: Sequence[torch.Tensor], dst: int) -> list[torch.Tensor | None]:
    """Rank `dst` gets all tensors, concatenated; the others get None."""
    return [torch.cat([t.flatten() for t in tensors]) if rank == dst else None for rank in range(len(tensors))]


def all_gather(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Every rank gets all tensors, concatenated."""
    return [torch.cat([tensor.flatten() for tensor in tensors]) for _ in tensors]


def reduce_scatter(
    tensors: Sequence[torch.Tensor], op: OpLike = "sum", sizes: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """Rank r gets the combination of block r of all tensors."""
    columns = zip(*(_blocks(tensor, len(tensors), sizes) for tensor in tensors), strict=True)
    return [combine(column, op) for column in columns]


def all_to_all(tensors: Sequence[torch.Tensor], sizes: Sequence[Sequence[int]] | None = None) -> list[torch.Tensor]:
    """Rank q gets block q of every tensor, concatenated."""
    rows = [_blocks(t, len(tensors), sizes[rank] if sizes else None) for rank, t in enumerate(tensors)]
    return [torch.cat([row[rank] for row in rows]) for rank in range(len(tensors))]


def _blocks(tensor: torch.Tensor, count: int, sizes: Sequence[int] | None) -> list[torch.Tensor]:
    sizes = sizes or [tensor.numel() // count] * count
    return [block.clone() for block in torch.split(tensor.flatten(), list(sizes))]
