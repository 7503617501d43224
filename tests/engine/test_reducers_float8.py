"""The float8 formats against torch: all codes one way, a dense set of float32 numbers the other."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch

from tests.support.reducers_driver import FLOAT8, result, same_bits
from unisono.engine.reducers.dtypes import DTYPES
from unisono.engine.reducers.elements import load, store


def codes(dtype: str) -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))


def dense() -> torch.Tensor:
    """Float32 numbers with all signs, exponents and leading bits of a mantissa, and with all ways to be rounded."""
    high = torch.arange(1 << 16, dtype=torch.int64).repeat_interleave(8) << 16
    low = torch.tensor([0, 1, 0x1234, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF]).repeat(1 << 16)
    bits = high | low
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)


def converters(dtype: str) -> tuple[Any, Any]:
    index = DTYPES.index(dtype)

    @numba.njit  # type: ignore[untyped-decorator]
    def decode(source: int, out: Any) -> None:
        for k in range(len(out)):
            out[k] = load(index, source, k)

    @numba.njit  # type: ignore[untyped-decorator]
    def encode(numbers: Any, target: int) -> None:
        for k in range(len(numbers)):
            store(index, target, k, numbers[k])

    return decode, encode


@pytest.mark.parametrize("dtype", FLOAT8)
def test_single_numbers_are_converted_as_torch_does(dtype: str) -> None:
    decode, encode = converters(dtype)
    source, out = codes(dtype), np.empty(256, np.float32)
    decode(source.data_ptr(), out)
    assert same_bits(torch.from_numpy(out), source.float())

    numbers = dense()
    got = torch.empty(len(numbers), dtype=torch.uint8)
    encode(numbers.numpy(), got.data_ptr())
    want = numbers.to(getattr(torch, dtype)).view(torch.uint8)
    wrong = (got != want).nonzero().flatten()[:5]
    assert not len(wrong), (numbers[wrong], got[wrong], want[wrong])


@pytest.mark.parametrize("dtype", FLOAT8)
def test_vectors_are_converted_as_torch_does(dtype: str) -> None:
    """Products and sums of all pairs of codes, which lie between codes, among subnormal numbers and beyond the last."""
    first, second = codes(dtype).view(torch.uint8).repeat_interleave(256), codes(dtype).view(torch.uint8).repeat(256)
    pair = [first.view(getattr(torch, dtype)), second.view(getattr(torch, dtype))]
    x, y = (tensor.float() for tensor in pair)
    assert same_bits(result("sum", True, pair), (x + y).to(pair[0].dtype))
    assert same_bits(result("product", True, pair), (x * y).to(pair[0].dtype))
    assert same_bits(result("avg", True, [*pair, pair[0]]), ((x + y + x) / 3).to(pair[0].dtype))
    assert same_bits(result("max", True, pair), torch.maximum(x, y).to(pair[0].dtype).where(x != y, pair[1]))
