"""What ranks pass in `supported_calls`, and what an op must make of it, in each dtype.

Values are small whole numbers, whose sums and products are exact in every dtype. Some are negative, so that a library
that takes a dtype for another of its size is found out.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from unisono.engine.reducers import DTYPES

RANKS = 3
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y, "avg": lambda x, y: x + y, "product": lambda x, y: x * y, "min": min, "max": max,
    "band": lambda x, y: x & y, "bor": lambda x, y: x | y, "bxor": lambda x, y: x ^ y,
    "premul_sum": lambda x, y: x + y, "custom": lambda x, y: x + y + 1,
}  # fmt: skip
FACTORS = (0.5, 2.0, 1.0)
"""What each rank's numbers are multiplied with in a premul_sum."""
_NUMBERS = ((0, 1, -2, 1, 0, 2), (1, -1, 2, 0, 0, 1), (-2, 0, 1, 1, 2, -1))


def is_number(kind: torch.dtype) -> bool:
    """Does torch know what numbers of this dtype are?"""
    return str(kind).removeprefix("torch.") in (*DTYPES, "complex32")


def has(kind: torch.dtype, op: str) -> bool:
    inexact = kind.is_floating_point or kind.is_complex
    if op in ("min", "max"):
        return not kind.is_complex
    if op in ("band", "bor", "bxor", "premul_sum"):
        return inexact == (op == "premul_sum")
    return op != "avg" or kind is not torch.bool


def signed(kind: torch.dtype) -> list[list[Any]]:
    """The numbers of each rank as a dtype has them: bools are 0 and 1, and what has no sign loses it."""
    if kind is torch.bool:
        return [[n % 2 for n in numbers] for numbers in _NUMBERS]
    return [[n if kind.is_signed else abs(n) for n in numbers] for numbers in _NUMBERS]


def combined(op: str, kind: torch.dtype, ranks: int) -> torch.Tensor:
    rows = signed(kind)
    if op == "premul_sum":
        rows = [[n * factor for n in numbers] for numbers, factor in zip(rows, FACTORS, strict=True)]
    totals = [functools.reduce(OPS[op], column) for column in zip(*rows[:ranks], strict=True)]
    if op == "avg":
        inexact = kind.is_floating_point or kind.is_complex
        totals = [total / ranks if inexact else int(total / ranks) for total in totals]
    return tensor_of(totals, kind)


def exact(kind: torch.dtype) -> torch.dtype:
    return torch.complex128 if kind.is_complex else torch.float64 if kind.is_floating_point else torch.int64


def tensor_of(numbers: Sequence[Any], kind: torch.dtype) -> torch.Tensor:
    return torch.tensor(numbers, dtype=exact(kind)).to(kind)


def any_bytes(kind: torch.dtype) -> list[torch.Tensor]:
    """Six elements of each rank. Bytes differ, as far as a byte has values."""
    raw = torch.arange(6 * RANKS * kind.itemsize) * 7 % 251
    whole = (raw % 2 if kind is torch.bool else raw).to(torch.uint8).view(kind)
    return [whole[6 * rank : 6 * rank + 6] for rank in range(RANKS)]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8).clone().view(tensor.dtype)


def zeros(count: int, kind: torch.dtype) -> torch.Tensor:
    return torch.zeros(count * kind.itemsize, dtype=torch.uint8).view(kind)


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Bit for bit; but of floats, 0 and -0 are one."""
    if torch.equal(x.view(torch.uint8), y.view(torch.uint8)):
        return True
    if not (x.dtype.is_floating_point or x.dtype.is_complex) or str(x.dtype).removeprefix("torch.") not in DTYPES:
        return False
    return torch.equal(x.to(exact(x.dtype)), y.to(exact(x.dtype)))
