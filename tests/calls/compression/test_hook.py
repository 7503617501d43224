"""DistributedDataParallel whose gradients are rounded between hosts learns what it learns with exact ones."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import unisono
from tests.support.on_ranks import in_process_group
from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def compressed(bare: nn.Module, wire: str | None, *, bucket_cap_mb: float = 25.0) -> Any:
    wrapped = nn.parallel.DistributedDataParallel(bare, bucket_cap_mb=bucket_cap_mb)
    if wire is not None:
        state = unisono.Compression(wire, dist.group.WORLD)
        wrapped.register_comm_hook(state, unisono.compress_hook)
    return wrapped


def imitate_a_teacher(wire: str | None, steps: int) -> list[float]:
    """The mean of all ranks' losses, at each step."""

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 4))

    torch.manual_seed(0)
    teacher, wrapped = network(), compressed(network(), wire, bucket_cap_mb=0.005)  # each layer is a bucket
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(1 + dist.get_rank()), []
    for _ in range(steps):
        data = torch.randn(32, 16, generator=generator)
        optimizer.zero_grad()
        loss = (wrapped(data) - teacher(data).detach()).square().mean()
        loss.backward()
        optimizer.step()
        whole = loss.detach()
        dist.all_reduce(whole, dist.ReduceOp.AVG)
        losses.append(whole.item())
    return losses


@pytest.mark.long
def test_the_loss_curve_is_that_of_exact_gradients(ranks: TorchRanks) -> None:
    """Over 200 steps no loss is further than 2 % from that with exact gradients, which falls to less than a tenth."""

    def work() -> list[list[float]]:
        return [imitate_a_teacher(wire, 200) for wire in (None, "bf16", "int8")]

    (exact, *rounded), other = ranks(2, hosts="2x1")(work)
    assert other == [exact, *rounded]
    assert exact[-1] < exact[0] / 10
    for curve in rounded:
        assert curve != exact
        assert curve == pytest.approx(exact, rel=0.02)


def test_buckets_that_are_filled_anew_start_without_errors(ranks: TorchRanks) -> None:
    """After its first step a model fills its buckets in the order of gradients; errors belong to other values then."""

    def work() -> list[Any]:
        torch.manual_seed(0)
        bare = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False))
        first, second = bare.parameters()
        wrapped, seen = nn.parallel.DistributedDataParallel(bare), []
        state = unisono.Compression("int8", dist.group.WORLD)

        def hook(state: Any, bucket: Any) -> Any:
            future = unisono.compress_hook(state, bucket)
            future.wait()
            seen.append((bucket.parameters()[0] is first, state._kept[0]._share.clone()))  # a row for each parameter
            return future

        hook.__annotations__ = {}
        wrapped.register_comm_hook(state, hook)
        data = torch.randn(2, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
        for _ in range(2):
            wrapped.zero_grad()
            wrapped(data).square().sum().backward()
        assert [is_first for is_first, _ in seen] == [True, False]
        # The same gradients again, and no error before: the same errors, each with its parameter.
        assert torch.equal(seen[0][1], seen[1][1].flip(0))
        assert not torch.equal(seen[0][1], seen[1][1])
        return [parameter.grad.tolist() for parameter in (first, second)]

    gradients, others = ranks(2, hosts="2x1")(work)
    assert gradients == others


@in_process_group(2, hosts="2x1")
def test_an_error_reaches_who_runs_backward() -> None:
    wrapped = compressed(nn.Linear(64, 64), "int8")
    wrapped(torch.ones(2, 64)).sum().backward()
    if dist.get_rank():
        dist.group.WORLD.abort()
    else:
        with pytest.raises(RuntimeError, match="aborted group"):
            wrapped(torch.ones(2, 64)).sum().backward()
