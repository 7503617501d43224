"""An error within backward, and functional collectives by their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


def train(wrapped: nn.Module, bare: nn.Module, steps: int = 3) -> torch.Tensor:
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in bare.parameters()])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.001},
    ],
    ids=str,
)
@pytest.mark.ranks(2, backend="unisono")
def test_data_parallel_training_gives_what_gloo_gives(options: dict[str, Any]) -> None:
    results = []
    for group in (None, dist.new_group(backend="gloo")):
        bare = model()
        results.append(train(nn.parallel.DistributedDataParallel(bare, process_group=group, **options), bare))
    assert torch.equal(*results)  # of two summands there is one order


@pytest.mark.ranks(2, backend="unisono")
def test_an_error_within_backward_reaches_the_user() -> None:
    wrapped = nn.parallel.DistributedDataParallel(model())
    wrapped(torch.randn(2, 16)).sum().backward()
    if dist.get_rank():
        with pytest.raises(RuntimeError, match="disagree"):
            dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(1))
    else:
        with pytest.raises(RuntimeError, match="disagree"):
            wrapped(torch.randn(2, 16)).sum().backward()
        dist.all_reduce(torch.ones(1))


@pytest.mark.ranks(2, backend="unisono")
def test_functional_collectives() -> None:
    from torch.distributed import _functional_collectives as functional

    me, world = dist.get_rank(), dist.group.WORLD
    ones = torch.ones(2) * (me + 1)
    assert functional.all_reduce(ones, "sum", world).tolist() == [3.0, 3.0]
    assert functional.all_gather_tensor(ones, 0, world).tolist() == [1.0, 1.0, 2.0, 2.0]
    assert functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, world).tolist() == [4.0 * me, 4.0 * me + 2]
    assert functional.all_to_all_single(ones, None, None, world).tolist() == [1.0, 2.0]
    assert functional.broadcast(ones, 1, world).tolist() == [2.0, 2.0]
    for one in functional.all_reduce_coalesced([ones, ones], "sum", world):
        assert one.tolist() == [3.0, 3.0]
    for one in functional.all_gather_into_tensor_coalesced([ones, ones], world):
        assert one.tolist() == [1.0, 1.0, 2.0, 2.0]
    for one in functional.reduce_scatter_tensor_coalesced([ones, ones], "sum", [0, 0], world):
        assert one.tolist() == [3.0]
