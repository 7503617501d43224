"""torch.compile, of code that communicates: it computes what the code as it is written computes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

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


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.ranks(3, backend="unisono")
def test_a_sharded_model(backend: str) -> None:
    from torch.distributed.fsdp import fully_shard

    torch._dynamo.reset()
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    pieces = copy.deepcopy(whole)
    for layer in (pieces[0], pieces[2], pieces):
        fully_shard(layer)
    run = torch.compile(pieces, backend=backend)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (whole, pieces)]
    data = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        expected, got = whole(data.flatten(0, 1)), run(data[dist.get_rank()])
        assert torch.allclose(got, expected.unflatten(0, (3, 2))[dist.get_rank()], atol=1e-6)
        for output, optimizer in zip((expected, got), optimizers, strict=True):
            optimizer.zero_grad()
            output.square().mean().backward()
            optimizer.step()
    for one, other in zip(pieces.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(one.full_tensor(), other, atol=1e-6)


@pytest.mark.ranks(3, backend="unisono")
def test_tensors_in_pieces() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh, me = init_device_mesh("cpu", (3,)), dist.get_rank()

    def function(local: torch.Tensor) -> torch.Tensor:
        rows = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
        product = rows.t() @ rows  # a sum over the ranks
        return product.redistribute(mesh, [Replicate()]).to_local() + 1

    local = torch.arange(8.0).reshape(2, 4) + 10 * me
    whole = torch.cat([torch.arange(8.0).reshape(2, 4) + 10 * rank for rank in range(3)])
    assert torch.equal(compiled(function, "aot_eager")(local), whole.t() @ whole + 1)
