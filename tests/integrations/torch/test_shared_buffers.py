"""The buffers of DistributedDataParallel and fully_shard lie in shared memory, by themselves."""

from __future__ import annotations  # the class of a test is sent to ranks without what its annotations name

import copy
import gc
import os
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.on_ranks import as_over_gloo
from tests.support.torch_ranks import TorchRanks
from tests.support.waiting import until
from unisono.integrations.torch.patch import SharedBuffers

pytestmark = pytest.mark.filterwarnings("default")  # torch's own

WIDTH = 160
MIB = 0.06  # a bucket for the 100 KiB of a layer
SHORT = 16 << 10  # bytes, more than the longest call that is staged in any case


def layers(count: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


def train(wrapped: nn.Module, parameters: list[nn.Parameter], steps: int = 4) -> list[float]:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    generator, losses = torch.Generator().manual_seed(1 + dist.get_rank()), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = wrapped(torch.randn(8, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(parameter.detach().double().sum().item() for parameter in parameters)]


def shared(tensor: torch.Tensor) -> bool:
    """Does it lie in this rank's heap?"""
    world: Any = dist.group.WORLD
    return bool(world.group.heap_first <= tensor.data_ptr() < world.group.heap_end)


def learnt(wrapped: nn.Module, whole: nn.Module, lowering: str, group: Any = None) -> list[float]:
    """What is learnt. Over our backend all calls that are not short are made in this way."""
    made: Any = group or dist.group.WORLD
    ours = dist.get_backend() == "unisono"
    if ours:
        made.group.forget_plans()
    losses = train(wrapped, list(whole.parameters()))
    if ours:
        assert {plan.record.lowering for plan in made.group.plans.values() if plan.nbytes > SHORT} == {lowering}
    return losses


OPTIONS: list[dict[str, Any]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@as_over_gloo(2)
def test_calls_on_buckets_are_zero_copy(options: dict[str, Any]) -> list[float]:
    """On those of the first step, and on those that are made anew after it."""
    whole = layers()
    wrapped = nn.parallel.DistributedDataParallel(whole, bucket_cap_mb=MIB, **options)
    return learnt(wrapped, whole, "zero copy, in place")


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
def test_sub_groups_and_several_dtypes() -> list[float]:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair: Any = pairs[dist.get_rank() // 2]
    whole = layers()
    whole[1].double()

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = whole

        def forward(self, data: torch.Tensor) -> Any:
            return whole[2](whole[1](whole[0](data).double()).float())

    wrapped = nn.parallel.DistributedDataParallel(Both(), process_group=pair, bucket_cap_mb=MIB)
    return learnt(wrapped, whole, "zero copy, in place", pair)


def test_full_heap_on_one_rank_means_staging(ranks: TorchRanks) -> None:
    """Its buckets are private, those of the others are not, and they learn the same."""

    def work(full: bool) -> list[float]:
        from unisono.base.errors import OutOfMemory
        from unisono.engine.memory.heap import Heap

        def refuse(*_: object) -> None:
            raise OutOfMemory("full")

        whole, empty = layers(), Heap.flat
        if full:
            Heap.flat = refuse  # type: ignore[method-assign,assignment]
        try:
            wrapped = nn.parallel.DistributedDataParallel(whole, bucket_cap_mb=MIB, gradient_as_bucket_view=True)
            losses = train(wrapped, list(whole.parameters()), 30)
        finally:
            Heap.flat = empty  # type: ignore[method-assign]
        assert len({shared(parameter.grad) for parameter in whole.parameters() if parameter.grad is not None}) == 1
        assert shared(whole[0].weight.grad) != full  # type: ignore[arg-type]
        return losses

    def on_rank_1() -> list[float]:
        return work(dist.get_rank() == 1)

    def private() -> list[float]:
        return work(True)

    assert ranks(2)(on_rank_1) == ranks(2)(private)


@pytest.mark.ranks(2, backend="unisono")
def test_dropped_buffers_are_freed() -> None:
    group: Any = dist.group.WORLD
    heap = group.group.engine.heap

    def used() -> int:
        gc.collect()
        heap._sort()
        return int(heap._arena.heap_bytes) - heap._idle - sum(size for _, size in heap._free)

    before = used()
    for view in (False, True):
        whole = layers()
        wrapped = nn.parallel.DistributedDataParallel(whole, gradient_as_bucket_view=view)
        train(wrapped, list(whole.parameters()))
        assert used() - before >= 3 * WIDTH * WIDTH * 4
        del wrapped, whole
        until(lambda: used() == before)  # the thread that has made the last call lets go of its tensors a bit later


@pytest.mark.ranks(2, backend="unisono")
def test_copies_pickles_and_forks() -> None:
    """A copy has buckets of its own; a child that is forked and ends leaves its parent's alone."""
    whole = layers()
    wrapped: Any = nn.parallel.DistributedDataParallel(whole, gradient_as_bucket_view=True)
    train(wrapped, list(whole.parameters()), 2)
    copies = [copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))]  # noqa: S301  our own
    child = os.fork()
    if not child:
        for parameter in whole.parameters():
            parameter.grad = None
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    gradient = whole[0].weight.grad
    assert gradient is not None
    assert shared(gradient)
    learnt = train(wrapped, list(whole.parameters()))
    for one in copies:
        assert train(one, list(one.module.parameters())) == learnt
        moved = one.module[0].weight.grad
        assert shared(moved)
        assert moved.data_ptr() != gradient.data_ptr()


@pytest.mark.parametrize("imported", [False, True])
@as_over_gloo(2)
def test_sharded_models_use_shared_memory(imported: bool) -> list[float]:
    """Whether torch's part is imported before the group is made or after it."""
    from torch.distributed.fsdp import fully_shard

    whole = layers()
    for layer in whole:
        fully_shard(layer)
    fully_shard(whole)
    return learnt(whole, whole, "zero copy")[:4]
