"""Calls whose smaller tensor is this rank's block of the larger one, as those of fully_shard: planned once."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.worlds import Worlds
from unisono.base.errors import ArgumentError
from unisono.calls.dispatch import step

COUNT = 300_000


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("async_op", [False, True])
def test_only_the_first_call_is_planned(worlds: Worlds, shared: bool, async_op: bool) -> None:
    def work() -> list[int]:
        me, size = unisono.get_rank(), unisono.get_world_size()
        group = unisono.new_group(range(size))  # the world's may ask for sizes, after other tests
        make = unisono.empty if shared else torch.empty
        planned = []
        for again in range(3):
            whole = make(size * COUNT)  # elsewhere than the one before, which still lives
            parts = list(whole.view(size, COUNT))
            parts[me].fill_(10 * again + me)
            with patch.object(step, "make_plan", wraps=step.make_plan) as plan:
                pending: Any = unisono.all_gather_single(whole, parts[me], group, async_op)
                assert pending is None or pending.wait()
                assert [part.unique().tolist() for part in parts] == [[10 * again + rank] for rank in range(size)]
                whole += me
                pending = unisono.reduce_scatter_single(parts[me], whole, group=group, async_op=async_op)
                assert pending is None or pending.wait()
            assert parts[me].unique().tolist() == [size * (10 * again + me) + sum(range(size))]
            planned.append(plan.call_count)
            unisono.barrier()
        return planned

    assert worlds(3).run(work) == [[2, 0, 0]] * 3


def test_other_overlaps_are_refused_after_it(worlds: Worlds) -> None:
    def work() -> None:
        me, size = unisono.get_rank(), unisono.get_world_size()
        whole = torch.arange(float(size * COUNT))
        parts = whole.view(size, COUNT)
        unisono.all_gather_single(whole, parts[me].clone())
        unisono.reduce_scatter_single(parts[me].clone(), whole)
        other = parts[(me + 1) % size]
        shifted = whole[me * COUNT + 1 :][:COUNT] if me + 1 < size else whole[me * COUNT - 1 :][:COUNT]
        for part in (other, shifted):
            with pytest.raises(ArgumentError, match="share memory"):
                unisono.all_gather_single(whole, part)
            with pytest.raises(ArgumentError, match="share memory"):
                unisono.reduce_scatter_single(part, whole)

    worlds(3).run(work)
