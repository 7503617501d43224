"""The buffers of DistributedDataParallel and fully_shard lie in shared memory, by themselves."""

from __future__ import annotations  # the class of a test is sent to ranks without what its annotations name

import copy
import gc
import os
import pickle
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

import unisono
from tests.integrations.torch import test_training as models
from tests.integrations.torch.test_training import DDP
from tests.support.torch_ranks import as_over_gloo
from tests.support.waiting import until
from unisono.engine.memory.heap import Heap
from unisono.integrations.torch.patch import SharedBuffers

pytestmark = pytest.mark.filterwarnings("default")  # torch's own

WIDTH = 160
MIB = 0.06  # a bucket for the 100 KiB of a layer
SHORT = 16 << 10  # bytes, more than the longest call that is staged in any case


model, train = partial(models.model, width=WIDTH), partial(models.train, width=WIDTH)


def shared(tensor: torch.Tensor) -> bool:
    """Does it lie in this rank's heap?"""
    world: Any = dist.group.WORLD
    return bool(world.group.heap_first <= tensor.data_ptr() < world.group.heap_end)


def learnt(wrapped: nn.Module, lowering: str, group: Any = None) -> list[Any]:
    """What is learnt. Over our backend all calls that are not short are made in this way."""
    made: Any = group or dist.group.WORLD
    ours = dist.get_backend() == "unisono"
    if ours:
        made.group.forget_plans()
    found = train(wrapped)
    if ours:
        assert {plan.record.lowering for plan in made.group.plans.values() if plan.nbytes > SHORT} == {lowering}
    return found


@pytest.mark.parametrize("option", ["", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"])
@as_over_gloo(2)
def test_calls_on_buckets_are_zero_copy(option: str) -> list[Any]:
    """On those of the first step, and on those that are made anew after it."""
    whole: Any = model()
    if option == "find_unused_parameters" and dist.get_rank():
        whole.forward = lambda data: whole[2](whole[0](data))
    return learnt(DDP(whole, bucket_cap_mb=MIB, **({option: True} if option else {})), "zero copy, in place")


@pytest.mark.ranks(2, backend="unisono")
def test_buckets_are_shared_whatever_torch_says() -> None:
    """Versions of torch name more or fewer of the options that a tensor has in any case."""
    world: Any = dist.group.WORLD
    empty = vars(torch)["ops"].aten.empty.memory_format  # by its name this object would be sent to the ranks
    usual = {"dtype": torch.float32, "device": torch.device("cpu")}
    with SharedBuffers(world.group):
        for more in ({}, {"layout": torch.strided}, {"layout": torch.strided, "pin_memory": False}):
            assert shared(empty([SHORT], **usual, **more))
        assert not shared(empty([SHORT, 2], **usual))


@as_over_gloo(4)
def test_sub_groups_and_several_dtypes() -> list[Any]:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model()
            self.layers[1].double()

        def forward(self, data: torch.Tensor) -> Any:
            return self.layers[2](self.layers[1](self.layers[0](data).double()).float())

    pair: Any = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
    return learnt(DDP(Both(), process_group=pair, bucket_cap_mb=MIB), "zero copy, in place", pair)


@pytest.mark.ranks(2, backend="unisono")
def test_full_heap_on_one_rank_means_staging() -> None:
    """Its buckets are private, those of the others are not, and they learn what they learn with private ones."""

    def work(full: bool) -> list[Any]:
        refuse = unisono.OutOfMemory("full")
        with patch.object(Heap, "flat", side_effect=refuse) if full else nullcontext():
            whole = model()
            found = train(DDP(whole, bucket_cap_mb=MIB, gradient_as_bucket_view=True), 30)
        assert {shared(parameter.grad) for parameter in whole.parameters() if parameter.grad is not None} == {not full}
        return found

    assert work(dist.get_rank() == 1) == work(True)


@pytest.mark.ranks(2, backend="unisono")
def test_dropped_buffers_are_freed() -> None:
    group: Any = dist.group.WORLD
    heap = group.group.engine.heap

    def used() -> int:
        gc.collect()
        return len(heap._lives)

    before = used()
    for view in (False, True):
        wrapped = DDP(model(), gradient_as_bucket_view=view)
        train(wrapped)
        assert used() > before
        del wrapped
        until(lambda: used() == before)  # the thread that has made the last call lets go of its tensors a bit later


@pytest.mark.ranks(2, backend="unisono")
def test_copies_pickles_and_forks() -> None:
    """A copy has buckets of its own; a child that is forked and ends leaves its parent's alone."""
    whole = model()
    wrapped: Any = DDP(whole, gradient_as_bucket_view=True)
    train(wrapped, 2)
    copies = [copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))]  # noqa: S301  our own
    child = os.fork()
    if not child:
        for parameter in whole.parameters():
            parameter.grad = None
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    places, found = set(), []
    for one in (wrapped, *copies):
        found.append(train(one))
        gradient = next(one.parameters()).grad
        assert shared(gradient)
        places.add(gradient.data_ptr())
    assert found == [found[0]] * 3
    assert len(places) == 3


@pytest.mark.parametrize("imported", [False, True])
@as_over_gloo(2)
def test_sharded_models_use_shared_memory(imported: bool) -> list[Any]:
    """Whether torch's part is imported before the group is made or after it."""
    return learnt(models.sharded(model()), "zero copy")
