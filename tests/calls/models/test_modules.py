"""Whole models: the same to begin with, averages of gradients and parameters, and models that differ."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import unisono
from unisono import ArgumentError, MismatchError
from unisono.base.errors import DTypeError
from unisono.calls.models import average_gradients, average_parameters, broadcast_module

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
        self.norm.num_batches_tracked += seed

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.first(x)).sum() + self.second(x).square().sum()


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.ranks(*SIZES)
def test_broadcast_module(ranks: int) -> None:
    for src in {0, ranks - 1}:
        model = Model(unisono.get_rank())
        parameters = list(model.parameters())
        broadcast_module(model, src)
        assert equal(values(model), values(Model(src)))
        assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
        assert model.second.weight is model.first.weight
        assert model.frozen.grad_fn is None


@pytest.mark.ranks(*SIZES)
def test_broadcast_module_of_a_state_dict(ranks: int) -> None:
    model = Model(unisono.get_rank())
    broadcast_module(model.state_dict(), ranks - 1)  # shows the shared weight under both its names
    assert equal(values(model), values(Model(ranks - 1)))


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


@pytest.mark.ranks(*SIZES)
def test_average_gradients_of_the_mean_loss(ranks: int) -> None:
    inputs = [torch.randn(7, 3, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
    alone, together = Model(5), Model(5)
    for x in inputs:
        (alone(x) / ranks).backward()
    together(inputs[unisono.get_rank()]).backward()
    average_gradients(together)
    for (name, one), other in zip(together.named_parameters(), alone.parameters(), strict=True):
        if other.grad is None:
            assert one.grad is None, name
        else:
            torch.testing.assert_close(one.grad, other.grad)


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


class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        if tied:
            self.two.weight = self.one.weight


ODD: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "a shape": (
        lambda: layers(4, 5),
        lambda: layers(4, 6),
        r"float32\[5, 3\] 1\.weight on ranks 0, 1; float32\[6, 3\] 1\.weight on rank 2",
    ),
    "a dtype": (lambda: layers(4), lambda: layers(4, dtype=torch.float64), r"float64\[4, 3\] 0\.weight on rank 2"),
    "one more": (lambda: layers(4), lambda: layers(4, 4), r"nothing more on ranks 0, 1; .* 1\.weight on rank 2"),
    "none": (lambda: layers(4), nn.ReLU, "nothing more on rank 2"),
    "a name": (
        lambda: nn.ModuleDict({"a": layers(2)}),
        lambda: nn.ModuleDict({"b": layers(2)}),
        r"b\.0\.weight on rank 2",
    ),
    "what is shared": (lambda: Tied(tied=False), lambda: Tied(tied=True), r"two\.bias on rank 2"),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.ranks(3)
def test_models_that_differ(what: str) -> None:
    usual, odd, message = ODD[what]
    model = odd() if unisono.get_rank() == 2 else usual()
    before = values(model)
    for call in (broadcast_module, average_parameters):
        with pytest.raises(ArgumentError, match=message):
            call(model)
    assert equal(values(model), before)
    unisono.barrier()


@pytest.mark.ranks(3)
def test_gradients_of_models_that_differ() -> None:
    for widths in ((4, 4), (5,)):
        model = layers(*widths) if unisono.get_rank() == 2 else layers(4)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with pytest.raises(MismatchError, match="rank 2 differs"):
            average_gradients(model)
