"""Models in pieces: sharded, split within layers, and in stages. What they learn is what they learn over Gloo."""

from __future__ import annotations

import pytest
from torch import nn

from tests.integrations.torch.test_data_parallel import model, same_as_gloo, train
from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_wrapped_and_sharded(ranks: TorchRanks, strategy: str) -> None:
    def work() -> list[float]:
        from torch.distributed import fsdp

        kind = fsdp.ShardingStrategy[strategy]
        wrapped = fsdp.FullyShardedDataParallel(model(), sharding_strategy=kind, use_orig_params=True, device_id="cpu")
        return train(wrapped, 3)

    same_as_gloo(ranks, 2, work)


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
        return train(whole, 3)

    same_as_gloo(ranks, 4, work)
