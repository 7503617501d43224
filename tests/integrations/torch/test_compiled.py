"""Functional collectives, and torch.compile of code that communicates: it computes what the plain code computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.on_ranks import as_over_gloo

Function = Callable[[torch.Tensor], Any]

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def compiled(function: Any, backend: str) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


def functional(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    from torch.distributed import _functional_collectives as calls

    world = dist.group.WORLD
    return (
        calls.all_reduce(tensor * 2, "sum", world) + 1,
        calls.all_reduce(tensor, "max", world) * 3,
        calls.all_gather_tensor(tensor + 1, 0, world) * 2,
        calls.all_gather_tensor(tensor, 1, world),
        calls.reduce_scatter_tensor(tensor * 3, "avg", 0, world) + 2,
        calls.all_to_all_single(tensor - 1, None, None, world) * 5,
        calls.broadcast(tensor, 1, world),
        *calls.all_reduce_coalesced([tensor, tensor * 4], "sum", world),
        *calls.all_gather_into_tensor_coalesced([tensor, tensor * 5], world),
        *calls.reduce_scatter_tensor_coalesced([tensor, tensor * 6], "sum", [0, 0], world),
    )


def in_place(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    size = dist.get_world_size()
    rows, columns = tensor.shape
    total, most = tensor * 2, tensor + 1
    dist.all_reduce(total)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    gathered = tensor.new_empty(rows * size, columns)
    dist.all_gather_into_tensor(gathered, total + tensor)
    part = tensor.new_empty(rows // size, columns)
    dist.reduce_scatter_tensor(part, gathered[:rows].contiguous())
    exchanged = torch.empty_like(tensor)
    dist.all_to_all_single(exchanged, tensor * 3)
    return total + 1, most, gathered * 2, part - 1, exchanged


@as_over_gloo(2)
def test_functional_collectives() -> list[list[float]]:
    tensor = torch.arange(12.0).reshape(6, 2) + 100 * dist.get_rank()
    return [made.flatten().tolist() for made in functional(tensor)]


@pytest.mark.sampled
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [functional, in_place], ids=["functional", "in place"])
@pytest.mark.ranks(3, backend="unisono")
def test_calls(function: Function, backend: str) -> None:
    run = compiled(function, backend)
    for turn in range(2):
        tensor = torch.arange(12.0).reshape(6, 2) * (turn + 1) + 100 * dist.get_rank()
        kept = tensor.clone()
        for one, other in zip(run(tensor), function(kept), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(tensor, kept)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.ranks(3, backend="unisono")
def test_gradients_through_calls(backend: str) -> None:
    def function(tensor: torch.Tensor) -> torch.Tensor:
        from torch.distributed import _functional_collectives as calls

        world = dist.group.WORLD
        parts = calls.reduce_scatter_tensor_autograd(tensor.sin(), "sum", 0, world)
        whole = calls.all_gather_tensor_autograd(parts.square(), 0, world)
        return calls.all_to_all_single_autograd(whole * tensor, None, None, world)

    gradients = []
    for run in (function, compiled(function, backend)):
        tensor = (torch.arange(12.0).reshape(6, 2) + dist.get_rank()).requires_grad_()
        (run(tensor) * (1 + torch.arange(2) + dist.get_rank())).sum().backward()
        gradients.append(tensor.grad)
    assert torch.allclose(*gradients)
    assert len(set(gradients[0].flatten().tolist())) == 12
