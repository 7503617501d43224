"""Hooks of DistributedDataParallel whose callbacks make calls themselves, with several buckets on their way at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.torch_ranks import TorchRanks

Hook = Callable[[Any, Any], torch.futures.Future[Any]]

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def one_by_one(hook: Hook) -> Hook:
    """The hook, waited for: no call of another bucket comes between its own."""

    def waited(state: Any, bucket: Any) -> torch.futures.Future[Any]:
        future = hook(state, bucket)
        future.wait()
        return future

    return waited


def train(hook: Hook, state: Any, buckets: int) -> list[float]:
    torch.manual_seed(0)
    bare = nn.Sequential(*[layer for _ in range(buckets) for layer in (nn.Linear(24, 24), nn.Tanh())])
    wrapped = nn.parallel.DistributedDataParallel(bare, bucket_cap_mb=0.001)  # each layer is one
    wrapped.register_comm_hook(state, lambda state, bucket: hook(state, bucket))  # torch minds annotations
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(8):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 24, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in bare.parameters()]).tolist()


@pytest.mark.parametrize("size", [2, 3])
def test_calls_out_of_callbacks_of_several_buckets(ranks: TorchRanks, size: int) -> None:
    def work() -> list[list[float]]:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        hook, learnt = powerSGD_hook.powerSGD_hook, []
        for one in (hook, one_by_one(hook)):
            state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
            learnt.append(train(one, state, buckets=5))
            assert len(state.error_dict) == 5  # as many buckets as layers
        return learnt

    learnt = [weights for rank in ranks(size)(work) for weights in rank]
    assert all(weights == learnt[0] for weights in learnt)
    assert len(set(learnt[0])) > 1000


def test_ranks_whose_callbacks_make_other_calls_hear_of_it(ranks: TorchRanks) -> None:
    def wrong(_: Any, bucket: Any) -> torch.futures.Future[Any]:
        def again(future: torch.futures.Future[Any]) -> torch.Tensor:
            more = torch.ones(2 + dist.get_rank())
            dist.all_reduce(more, async_op=True).get_future().wait()
            return future.value()[0]

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

    def work() -> None:
        with pytest.raises(RuntimeError, match=r"disagree(.|\n)*float32\[3\]"):
            train(wrong, None, buckets=1)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0, 2.0]

    ranks(2)(work)
