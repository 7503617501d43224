"""Whole models: equal to begin with, averages, models that differ; and `flatten_` and `share_`, which move tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from tests.calls.collectives.test_exact import wait_for
from tests.support.on_ranks import in_new_world
from unisono import ArgumentError, MismatchError
from unisono.base.config import Config
from unisono.base.errors import DTypeError
from unisono.calls.models import average_gradients, average_parameters, broadcast_module, flatten_

SIZES = [1, 3]


class Model(nn.Module):
    """Shared, strided and frozen parameters, and buffers of several dtypes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(3, 4)
        self.second.weight = self.first.weight
        self.transposed = nn.Parameter(torch.randn(5, 2).t())
        self.frozen = nn.Parameter(torch.randn(3, dtype=torch.float64), requires_grad=False)
        self.register_buffer("mask", torch.rand(6) > 0.5)
        self.norm.num_batches_tracked.add_(seed)


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("of", [lambda model: model, nn.Module.state_dict], ids=["module", "state dict"])
@pytest.mark.ranks(*SIZES)
def test_broadcast_module(ranks: int, of: Callable[[nn.Module], Any]) -> None:
    """A state dict shows the shared weight under both its names."""
    for src in {0, ranks - 1}:
        model = Model(unisono.get_rank())
        parameters = list(model.parameters())
        broadcast_module(of(model), src)
        torch.testing.assert_close(values(model), values(Model(src)), rtol=0, atol=0)
        assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
        assert model.second.weight is model.first.weight
        assert model.frozen.grad_fn is None


@pytest.mark.ranks(*SIZES)
def test_average_parameters(ranks: int) -> None:
    model = Model(unisono.get_rank())
    before = values(model)
    average_parameters(model)
    for name, parameter in model.named_parameters():
        expected = sum(dict(Model(rank).named_parameters())[name].detach() for rank in range(ranks)) / ranks
        torch.testing.assert_close(parameter.detach(), expected)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])


@pytest.mark.ranks(3)
def test_gradient_on_some_ranks_only() -> None:
    model = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(4)])
    rank = unisono.get_rank()
    model[rank].weight.grad = torch.full((2, 2), float(rank + 1))
    average_gradients(model)
    for other in range(3):
        assert torch.equal(model[other].weight.grad, torch.full((2, 2), (other + 1) / 3))
    assert model[3].weight.grad is None


@pytest.mark.ranks(3)
def test_sparse_gradients_are_refused_everywhere() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    if unisono.get_rank() == 1:
        model(torch.tensor([1])).sum().backward()
    with pytest.raises(DTypeError, match="weight: its gradient is sparse"):
        average_gradients(model)
    broadcast_module(model)


def layers(*widths: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(3, width, dtype=dtype) for width in widths))


def pair(*, tied: bool) -> nn.ModuleList:
    both = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    if tied:
        both[1].weight = both[0].weight
    return both


ODD: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "a shape": (
        lambda: layers(4, 5), lambda: layers(4, 6),
        r"float32\[5, 3\] 1\.weight on ranks 0, 1; float32\[6, 3\] 1\.weight on rank 2"),
    "a dtype": (lambda: layers(4), lambda: layers(4, dtype=torch.float64), r"float64\[4, 3\] 0\.weight on rank 2"),
    "one more": (lambda: layers(4), lambda: layers(4, 4), r"nothing more on ranks 0, 1; .* 1\.weight on rank 2"),
    "none": (lambda: layers(4), nn.ReLU, "nothing more on rank 2"),
    "a name": (
        lambda: nn.ModuleDict({"a": layers(2)}), lambda: nn.ModuleDict({"b": layers(2)}), r"b\.0\.weight on rank 2"),
    "what is shared": (lambda: pair(tied=False), lambda: pair(tied=True), r"1\.bias on rank 2"),
}  # fmt: skip


@pytest.mark.parametrize("what", ODD)
@pytest.mark.ranks(3)
def test_models_that_differ(what: str) -> None:
    usual, odd, message = ODD[what]
    model = odd() if unisono.get_rank() == 2 else usual()
    before = values(model)
    for call in (broadcast_module, average_parameters):
        with pytest.raises(ArgumentError, match=message):
            call(model)
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)
    unisono.barrier()


@pytest.mark.ranks(3)
def test_gradients_of_models_that_differ() -> None:
    for widths in ((4, 4), (5,)):
        model = layers(*widths) if unisono.get_rank() == 2 else layers(4)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with pytest.raises(MismatchError, match="rank 2 differs"):
            average_gradients(model)


def expect_in_heap(*tensors: torch.Tensor) -> None:
    group = unisono.init()
    assert all(group.heap_first <= tensor.data_ptr() < group.heap_end for tensor in tensors)


@pytest.mark.ranks(1, 2, 3)
def test_call_on_the_flat_tensor_is_one_on_all(ranks: int) -> None:
    me = unisono.get_rank()
    leaf = nn.Parameter(torch.arange(6.0).view(2, 3) + me)
    tensors = [torch.full((300, 5), 2.0 + me), leaf, torch.tensor([4, 5]) * me, torch.empty(0), torch.tensor(7.0 * me)]
    before = [tensor.detach().clone() for tensor in tensors]
    floats, integers = flatten_(tensors)
    assert all(map(torch.equal, tensors, before))
    assert (floats.numel(), integers.numel(), leaf.is_leaf, leaf.requires_grad) == (1507, 2, True, True)
    expect_in_heap(floats, integers, *(tensor for tensor in tensors if tensor.numel()))
    unisono.all_reduce(floats)
    unisono.broadcast(integers, ranks - 1)
    for k in (0, 1, 4):
        unisono.all_reduce(before[k])
    before[2].copy_(torch.tensor([4, 5]) * (ranks - 1))
    assert all(map(torch.equal, tensors, before))
    assert flatten_([]) == []


@pytest.mark.parametrize("full", [[0], [1], [0, 1]])
@in_new_world(2, config=Config(heap_bytes=1 << 20))
def test_full_memory_means_staging(full: list[int]) -> None:
    """On some ranks or on all; the values are right."""
    me = unisono.get_rank()
    filler = unisono.empty(unisono.init().engine.arena.heap_bytes, dtype=torch.uint8) if me in full else None
    for _ in range(20):
        tensors = [torch.arange(count * 1.0) + me for count in (20_000, 3000)]
        (flat,) = flatten_(tensors)
        unisono.all_reduce(flat)
        unisono.all_reduce_coalesced(tensors)
        for tensor in tensors:
            assert torch.equal(tensor, 4 * torch.arange(len(tensor) * 1.0) + 2)
    del filler


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.ranks(2)
def test_moved_tensors_keep_inference_mode(inside: bool) -> None:
    """Inference tensors stay usable, and parameters, which stay the same objects, can still be trained."""
    me = unisono.get_rank()
    with torch.inference_mode():
        tensor = torch.full((2, 2), me + 1.0)
    weight = nn.Parameter(torch.ones(3))
    with torch.inference_mode(inside):
        for move in (lambda: flatten_([tensor, weight]), lambda: [*map(unisono.share_, (tensor, weight))]) * 2:
            move()
            unisono.all_reduce(tensor.view(4))
            unisono.all_reduce(tensor.t(), unisono.premul_sum(1.0))
            wait_for(unisono.all_reduce(tensor.t(), async_op=True))
    assert tensor.tolist() == [[3.0 * 2**11] * 2] * 2
    assert tensor.is_inference()
    assert unisono.share_(weight) is weight
    expect_in_heap(tensor, weight)
    weight.square().sum().backward()
    torch.optim.SGD([weight], 0.5).step()
    assert weight.tolist() == [0.0, 0.0, 0.0]
