"""What people do with DistributedDataParallel, also with hooks that make calls: what is learnt is that over Gloo."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.on_ranks import as_over_gloo
from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


def train(wrapped: nn.Module, steps: int = 4, after: Callable[[], None] = lambda: None) -> list[float]:
    """Train on a rank's own data; the loss of each step."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator, losses = torch.Generator().manual_seed(1 + dist.get_rank()), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = wrapped(torch.randn(8, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        after()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("by_all", [True, False])
def test_ranks_with_fewer_batches_join(ranks: TorchRanks, by_all: bool) -> None:
    def work() -> list[float]:
        wrapped = nn.parallel.DistributedDataParallel(model())
        with wrapped.join(divide_by_initial_world_size=by_all):
            losses = train(wrapped, 2 + 2 * dist.get_rank())
        return [*losses, *wrapped.module[0].bias.tolist()]

    ours = ranks(2)(work)
    assert ours == ranks(2, "gloo")(work)
    assert ours[0][2:] == ours[1][4:]


@as_over_gloo(2)
def test_layers_that_are_not_always_used() -> list[float]:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes, self.turn = model(), nn.Linear(16, 16), 0

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            self.turn += 1
            if (self.turn + dist.get_rank()) % 3:
                data = self.sometimes(data)
            return self.always(data)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    return train(nn.parallel.DistributedDataParallel(Sometimes(), find_unused_parameters=True))


def test_sparse_gradients(ranks: TorchRanks) -> None:
    def work() -> list[float]:
        torch.manual_seed(0)
        table = nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
        wrapped = nn.parallel.DistributedDataParallel(table)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            wrapped(torch.randint(10, (3, 2), generator=generator)).square().sum().backward()
            optimizer.step()
        return table.weight.flatten().tolist()

    ours, theirs = ranks(2)(work), ranks(2, "gloo")(work)
    assert ours[0] == ours[1]
    assert torch.allclose(torch.tensor(ours), torch.tensor(theirs))


BUILTIN = torch._C._distributed_c10d.BuiltinCommHookType
HOOKS: dict[str, Callable[[Any, Any, Any], None]] = {
    # By its name torch lets this one run over NCCL only.
    "bf16": lambda ddp, hooks, _: ddp.register_comm_hook(None, lambda s, bucket: hooks.bf16_compress_hook(s, bucket)),
    "fp16": lambda ddp, hooks, _: ddp.register_comm_hook(None, hooks.fp16_compress_hook),
    "wrapped": lambda ddp, hooks, _: ddp.register_comm_hook(None, hooks.fp16_compress_wrapper(hooks.allreduce_hook)),
    "powerSGD": lambda ddp, _, power: ddp.register_comm_hook(
        power.PowerSGDState(None, 1, start_powerSGD_iter=2), power.powerSGD_hook
    ),
    "builtin": lambda ddp, *_: ddp._register_builtin_comm_hook(BUILTIN.ALLREDUCE),
    "builtin fp16": lambda ddp, *_: ddp._register_builtin_comm_hook(BUILTIN.FP16_COMPRESS),
}


@pytest.mark.parametrize("name", HOOKS)
@as_over_gloo(2)
def test_hooks(name: str) -> list[float]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    wrapped = nn.parallel.DistributedDataParallel(model())
    HOOKS[name](wrapped, default_hooks, powerSGD_hook)
    return train(wrapped, 5)


needs_a_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler, such as g++")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=needs_a_compiler)])
@as_over_gloo(2)
def test_compiled_models(backend: str) -> list[float]:
    torch._dynamo.reset()
    return train(torch.compile(nn.parallel.DistributedDataParallel(model()), backend=backend))  # type: ignore[arg-type]


Hook = Callable[[Any, Any], torch.futures.Future[Any]]


def one_by_one(hook: Hook) -> Hook:
    """The hook, waited for: no call of another bucket comes between its own."""

    def waited(state: Any, bucket: Any) -> torch.futures.Future[Any]:
        future = hook(state, bucket)
        future.wait()
        return future

    return waited


def train_with(hook: Hook, state: Any, buckets: int) -> list[float]:
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
def test_callbacks_of_several_buckets_make_calls(ranks: TorchRanks, size: int) -> None:
    def work() -> list[list[float]]:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        hook, learnt = powerSGD_hook.powerSGD_hook, []
        for one in (hook, one_by_one(hook)):
            state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
            learnt.append(train_with(one, state, buckets=5))
            assert len(state.error_dict) == 5  # as many buckets as layers
        return learnt

    learnt = [weights for rank in ranks(size)(work) for weights in rank]
    assert all(weights == learnt[0] for weights in learnt)
    assert len(set(learnt[0])) > 1000


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
