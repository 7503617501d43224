"""`flatten_`: the same tensors with the same values, in the memory of flat ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import unisono
from unisono import ArgumentError
from unisono.coalesced import flatten_

Worlds = Callable[[int], unisono.World]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_call_on_the_flat_tensor_is_one_on_all(worlds: Worlds, ranks: int) -> None:
    def work() -> None:
        me, group = unisono.get_rank(), unisono.init()
        leaf = torch.nn.Parameter(torch.arange(6.0).view(2, 3) + me)
        tensors = [
            torch.full((300, 5), 2.0 + me),
            leaf,
            torch.tensor([4, 5]) * me,
            torch.empty(0),
            torch.tensor(7.0 * me),
        ]
        before = [tensor.detach().clone() for tensor in tensors]
        floats, integers = flatten_(tensors)
        assert all(map(torch.equal, tensors, before))
        assert (floats.numel(), integers.numel()) == (1507, 2)
        assert leaf.is_leaf
        assert leaf.requires_grad
        assert all(group.heap_first <= tensor.data_ptr() < group.heap_end for tensor in tensors if tensor.numel())
        unisono.all_reduce(floats)
        unisono.broadcast(integers, ranks - 1)
        for k in (0, 1, 4):
            unisono.all_reduce(before[k])
        before[2].copy_(torch.tensor([4, 5]) * (ranks - 1))
        assert all(map(torch.equal, tensors, before))

    worlds(ranks).run(work)


def test_nothing_and_what_cannot_be_moved(worlds: Worlds) -> None:
    def work() -> None:
        assert flatten_([]) == []
        x = torch.ones(4, 5)
        for tensors, message in (([x, x], "twice"), ([x.t()], r"tensors\[0\]: only contiguous")):
            with pytest.raises(ArgumentError, match=message):
                flatten_(tensors)

    worlds(1).run(work)
