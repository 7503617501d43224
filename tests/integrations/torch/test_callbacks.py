"""Calls that callbacks of other calls make, such as hooks of DistributedDataParallel, and an error within backward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.integrations.torch.test_training import DDP, WIDTH, model, train
from tests.support.on_ranks import in_process_group

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


@pytest.mark.ranks(2, backend="unisono")
def test_callback_may_wait_for_its_own_call() -> None:
    again, lock = torch.ones(3), []

    def callback(_: Any) -> None:
        lock.append(dist.all_reduce(again, async_op=True).get_future().wait())

    dist.all_reduce(torch.arange(float(1 << 20)), async_op=True).get_future().then(callback).wait()
    assert again.tolist() == [2.0] * 3
    assert len(lock) == 1


Hook = Callable[[Any, Any], torch.futures.Future[Any]]


def train_with(hook: Hook, state: Any, buckets: int) -> list[float]:
    bare = model(buckets)
    wrapped = DDP(bare, bucket_cap_mb=0.0005)  # each layer is one
    wrapped.register_comm_hook(state, lambda state, bucket: hook(state, bucket))  # torch minds annotations
    train(wrapped, 8)
    return torch.cat([parameter.detach().flatten() for parameter in bare.parameters()]).tolist()


@pytest.mark.parametrize(("size", "hosts"), [(2, ""), (3, ""), (2, "1+1"), (3, "2+1")])
@in_process_group("size", hosts="hosts")
def test_callbacks_of_several_buckets_make_calls(size: int, hosts: str) -> None:
    """Over Gloo this hangs. If one bucket waits for the calls of another, all weights are the same."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    def one_by_one(state: Any, bucket: Any) -> torch.futures.Future[Any]:
        future = powerSGD_hook(state, bucket)
        future.wait()
        return future

    learnt = []
    for hook in (powerSGD_hook, one_by_one):
        state = PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
        learnt.append(train_with(hook, state, buckets=5))
        assert len(state.error_dict) == 5  # as many buckets as layers
    assert learnt[0] == learnt[1]
    assert len(set(learnt[0])) > 1000
    of_all = torch.empty(size, len(learnt[0]))
    dist.all_gather_single(of_all, torch.tensor(learnt[0]))
    assert (of_all == of_all[0]).all()


@pytest.mark.ranks(2, backend="unisono")
def test_different_calls_in_callbacks_raise() -> None:
    def wrong(_: Any, bucket: Any) -> torch.futures.Future[Any]:
        def again(future: torch.futures.Future[Any]) -> torch.Tensor:
            more = torch.ones(2 + dist.get_rank())
            dist.all_reduce(more, async_op=True).get_future().wait()
            return future.value()[0]

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

    with pytest.raises(RuntimeError, match=r"disagree(.|\n)*float32\[3\]"):
        train_with(wrong, None, buckets=1)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [2.0, 2.0]


@pytest.mark.ranks(2, backend="unisono")
def test_error_within_backward_reaches_the_user() -> None:
    wrapped = DDP(model())
    wrapped(torch.randn(2, WIDTH)).sum().backward()
    wrong = dist.all_reduce if dist.get_rank() else lambda tensor: wrapped(tensor).sum().backward()
    with pytest.raises(RuntimeError, match="disagree"):
        wrong(torch.randn(2, WIDTH))
    dist.all_reduce(torch.ones(1))
