"""Calls on lists like earlier ones: the plan is that of the earlier call, but tensors are looked at anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono


@contextmanager
def unplanned() -> Iterator[None]:
    """In this block, calls on lists must have a plan."""
    names = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
    patches = [patch.object(sys.modules[f"unisono.calls.collectives.{name}"], "Call", None) for name in names]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.ranks(2, 3)
def test_every_form(async_op: bool, ranks: int) -> None:
    me = unisono.get_rank()
    group = unisono.new_group(range(ranks))  # the world's may ask for rankss, after other tests
    got: list[list[float]] = []

    def lists(base: float) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        inputs = [torch.full((2,), base + 10 * me + rank) for rank in range(ranks)]
        return torch.full((2,), base + 10 * me), inputs, [torch.zeros(2) for _ in range(ranks)]

    def make(base: float) -> None:
        got.clear()
        for root in (0, ranks - 1):
            one, inputs, outputs = lists(base + 1)
            wait(unisono.gather(one, outputs if me == root else None, root, group, async_op=async_op))
            got.append([tensor[1].item() for tensor in outputs])
            wait(unisono.scatter(one, inputs if me == root else None, root, group, async_op=async_op))
            got.append(one.tolist())
        one, inputs, outputs = lists(base + 2)
        wait(unisono.all_gather(outputs, one, group, async_op=async_op))
        wait(unisono.reduce_scatter(one, inputs, "sum", group, async_op=async_op))
        got.append([*one.tolist(), *(tensor[0].item() for tensor in outputs)])
        wait(unisono.all_to_all(outputs, inputs, group, async_op=async_op))
        got.append([tensor[0].item() for tensor in outputs])

    def wait(pending: Any) -> None:
        if pending is not None:
            pending.wait()

    make(100.0)
    with unplanned():
        make(200.0)
    everybody = range(ranks)
    expected: list[list[float]] = []
    for root in (0, ranks - 1):
        expected.append([201.0 + 10 * rank if me == root else 0.0 for rank in everybody])
        expected.append([201.0 + 10 * root + me] * 2)
    total = sum(202.0 + 10 * rank + me for rank in everybody)
    expected.append([total, total, *(202.0 + 10 * rank for rank in everybody)])
    expected.append([202.0 + 10 * rank + me for rank in everybody])
    assert got == expected


@pytest.mark.ranks(2)
def test_a_tensor_with_new_memory_is_written_there() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    group = unisono.new_group(range(size))
    outputs, mine = [torch.zeros(3) for _ in range(size)], torch.full((3,), 1.0 + me)
    unisono.all_gather(outputs, mine, group)
    with unplanned():
        old = outputs[1].data
        outputs[1].data = torch.zeros(3)
        mine.add_(10)
        unisono.all_gather(outputs, mine, group)
    assert [tensor.tolist() for tensor in outputs] == [[11.0 + rank] * 3 for rank in range(size)]
    assert old.tolist() == [2.0] * 3


@pytest.mark.ranks(2)
def test_what_is_unlike_the_earlier_call_is_checked() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    mine, whole = torch.full((2,), 1.0 + me), torch.zeros(2 * size)
    unisono.all_gather([torch.zeros(2) for _ in range(size)], mine)
    shared = [whole[:2]] * size
    overlapping = [whole[k : k + 2] for k in range(size)]
    for wrong in (shared, overlapping, [torch.zeros(2) for _ in range(size - 1)], [torch.zeros(2).int()] * size):
        with pytest.raises(unisono.ArgumentError):
            unisono.all_gather(wrong, mine)
    with pytest.raises(unisono.DTypeError):
        unisono.all_gather([None] * size, mine)
    strided = [torch.zeros(4)[::2] for _ in range(size)]
    unisono.all_gather(strided, mine)
    own = [mine if rank == me else torch.zeros(2) for rank in range(size)]
    unisono.all_gather(own, mine)
    unisono.all_gather(own, mine)  # an input may be the block of the output that is its own
    for got in (strided, own):
        assert [tensor.tolist() for tensor in got] == [[1.0 + rank] * 2 for rank in range(size)]
