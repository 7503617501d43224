"""The promise about bits: the same on all ranks, and whatever the size of a message, the place in it, or its memory."""

from __future__ import annotations

import pytest
import torch

import unisono
from tests.support.worlds import Worlds
from unisono import testing as oracle

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = 50_000


def numbers(rank: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of very different sizes, so that every other order of additions shows."""
    draw = torch.Generator().manual_seed(rank)
    drawn = torch.randn(WHOLE, generator=draw, dtype=torch.float64)
    return (drawn * torch.randint(-8, 9, (WHOLE,), generator=draw).double().exp2()).to(dtype)


def pieces() -> list[slice]:
    """Parts of the whole, of sizes on both sides of every limit, at even and odd places."""
    return [
        slice(first, first + size)
        for size in (1, 3, 64, 100, 1000, 2047, 2049, 4097, 9_001, 16_385, 33_001)
        for first in (0, 1, 63, 4001)
    ]


def memories(part: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Copies of a part: private, shared, and inside larger tensors of both kinds."""
    group = unisono.init()
    wide = [torch.empty(count + 10, dtype=part.dtype), group.empty(count + 10, dtype=part.dtype)]
    narrow = [torch.empty(count, dtype=part.dtype), group.empty(count, dtype=part.dtype)]
    return [t.copy_(part) for t in (*narrow, *(w[7 : 7 + count] for w in wide))]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.ranks(2, 3, 5)
def test_bits_depend_on_the_numbers_only(dtype: torch.dtype) -> None:
    group = unisono.init()
    data = [numbers(rank, dtype) for rank in range(group.size)]
    calls = 0
    for op in ("sum", "avg"):
        whole = bits(oracle.combine(data, op)).view(WHOLE, -1)
        for part in pieces():
            for name in (None, "one_shot", "two_shot"):
                for tensor in memories(data[group.rank][part], part.stop - part.start):
                    unisono.all_reduce(tensor, op, algorithm=name)
                    assert torch.equal(bits(tensor), whole[part].flatten()), (op, part, name, calls % 4)
                    calls += 1
    assert calls == 1056


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.ranks(3)
def test_every_reducing_collective_gives_these_bits(dtype: torch.dtype) -> None:
    group = unisono.init()
    data = [numbers(rank, dtype) for rank in range(group.size)]
    for op in ("sum", "avg", "product"):
        want = oracle.combine(data, op)
        for count in (30, 3_000, 48_000):
            for tensor in memories(data[group.rank][:count], count):
                block = torch.empty(count // group.size, dtype=dtype)
                unisono.reduce_scatter_single(block, tensor, op)
                own = slice(group.rank * len(block), (group.rank + 1) * len(block))
                assert torch.equal(bits(block), bits(want[own]))
                unisono.reduce(tensor, 1, op)
                assert torch.equal(bits(tensor), bits((want if group.rank == 1 else data[group.rank])[:count]))


def test_other_orders_would_show(worlds: Worlds) -> None:
    """The data of these tests tells orders apart: a ring adds in another one, on every rank the same."""

    def ring() -> torch.Tensor:
        tensor = numbers(unisono.init().rank, torch.float32)
        unisono.all_reduce(tensor, algorithm="ring")
        return tensor

    results = worlds(3).run(ring)
    want = oracle.combine([numbers(rank, torch.float32) for rank in range(3)])
    assert all(torch.equal(result, results[0]) for result in results)
    assert not torch.equal(results[0], want)
    assert torch.allclose(results[0], want, rtol=1e-5, atol=1e-3)


@pytest.mark.ranks(2)
def test_special_values_pass_like_any_other() -> None:
    rank = unisono.init().rank
    values = [[float("inf"), 1.0, 65_504.0, -0.0, float("nan")], [-float("inf"), float("inf"), 65_504.0, -0.0, 1.0]]
    got = []
    for dtype in (torch.float16, torch.float32):
        tensor = torch.tensor(values[rank], dtype=dtype)
        unisono.all_reduce(tensor)
        got.append(tensor.tolist())
    half, single = got
    assert str(half) == "[nan, inf, inf, -0.0, nan]"
    assert str(single) == "[nan, inf, 131008.0, -0.0, nan]"
