"""Models in pieces: sharded, split within layers, and in stages. What they learn is what they learn over Gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


def losses(wrapped: nn.Module, seed: int, optimizer: Any = None, steps: int = 3) -> list[float]:
    """Train on data of this seed; the loss of each step and a fingerprint of what was learnt, to the last bit."""
    optimizer = optimizer or torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator, seen = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = wrapped(torch.randn(8, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert len(set(seen)) == steps
    return seen


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_wrapped_and_sharded(ranks: TorchRanks, strategy: str) -> None:
    def work() -> list[float]:
        from torch.distributed import fsdp

        kind = fsdp.ShardingStrategy[strategy]
        wrapped = fsdp.FullyShardedDataParallel(model(), sharding_strategy=kind, use_orig_params=True, device_id="cpu")
        return losses(wrapped, 1 + dist.get_rank())

    assert ranks(2)(work) == ranks(2, "gloo")(work)


def test_sharded_within_and_replicated_between(ranks: TorchRanks) -> None:
    def work() -> list[float]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        whole = model()
        for layer in whole:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(whole, mesh=mesh)
        return losses(whole, 1 + dist.get_rank())

    assert ranks(4)(work) == ranks(4, "gloo")(work)
