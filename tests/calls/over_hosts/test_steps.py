"""Calls over hosts that are made again: on the same tensors and on others, on tensors that are gone, in any order."""

import weakref

import numpy as np
import pytest
import torch

import unisono

LONG, SHORT = 300_000, 1000
"""Elements of float64: several segments, and one."""

pytestmark = pytest.mark.sampled(most=1)
SHAPES = ("2x1", "2x2")


def given(rank: int, n: int, turn: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float64) % 97 * (rank + 1) + turn


def total(size: int, n: int, turn: int) -> torch.Tensor:
    return torch.stack([given(rank, n, turn) for rank in range(size)]).sum(0)


@pytest.mark.sampled
@pytest.mark.parametrize("n", [SHORT, LONG])
@pytest.mark.ranks(hosts=SHAPES)
def test_calls_take_old_and_new_tensors(n: int) -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    tensors = [torch.empty(n, dtype=torch.float64) for _ in range(3)]
    wide = torch.empty(size * n, dtype=torch.float64)
    for turn in range(12):
        tensor = tensors[turn * turn % 5 % 3]
        tensor.copy_(given(me, n, turn))
        unisono.all_reduce(tensor)
        assert tensor.equal(total(size, n, turn))
        tensor.copy_(given(me, n, turn))
        unisono.all_gather_single(wide, tensor)
        assert wide.equal(torch.cat([given(rank, n, turn) for rank in range(size)]))
        parts = [torch.empty(n, dtype=torch.float64) for _ in range(size)]
        unisono.all_gather(parts, tensor)
        assert all(part.equal(given(rank, n, turn)) for rank, part in enumerate(parts))
        unisono.broadcast(tensor, turn % size)
        assert tensor.equal(given(turn % size, n, turn))


@pytest.mark.parametrize("n", [SHORT, LONG])
@pytest.mark.ranks(hosts=SHAPES)
def test_memory_of_tensors_is_not_kept(n: int) -> None:
    seen = []
    for _ in range(4):
        array = np.ones(n)
        seen.append(weakref.ref(array))
        unisono.all_reduce(torch.from_numpy(array))
        del array
    assert [one() is None for one in seen] == [True] * 4


@pytest.mark.ranks(hosts=SHAPES)
def test_later_calls_ignore_refused_ones() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    for turn in range(12):
        for _ in range(turn % 3):
            tensor = given(me, 5, turn)
            unisono.all_reduce(tensor)
            assert tensor.equal(total(size, 5, turn))
        with pytest.raises(unisono.MismatchError):
            unisono.all_reduce(given(me, 5, 100 + turn), "sum" if me != turn % size else "max")
