"""Calls on lists like earlier ones: the plan is that of the earlier call, but tensors are looked at anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.matrix import Case, ops
from tests.support.matrix_driver import begin

FORMS = ("all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")


@contextmanager
def unplanned() -> Iterator[None]:
    """In this block, calls on lists must have a plan."""
    patches = [patch.object(sys.modules[f"unisono.calls.collectives.{name}"], "Call", None) for name in FORMS]
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
    group = unisono.new_group(range(ranks))  # the world's may ask for sizes, after other tests

    def make(seed: int) -> None:
        for form, root in product(FORMS, (0, ranks - 1)):
            case = Case(form, "float32", ops(form, "float32")[0], 2, async_op=async_op, root=root, seed=seed)
            call = partial(getattr(unisono, form), group=group, async_op=async_op)
            assert not begin(case, group.rank, ranks, lambda given, call=call: call(*given))()  # type: ignore[misc]

    make(1)
    with unplanned():
        make(2)


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
