"""Models in pieces: sharded, split within layers, and in stages. They compute and learn what the whole does."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.integrations.torch.test_data_parallel import model, train
from tests.support.on_ranks import as_over_gloo, in_process_group

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@as_over_gloo(2)
def test_wrapped_and_sharded(strategy: str) -> list[float]:
    from torch.distributed import fsdp

    kind = fsdp.ShardingStrategy[strategy]
    wrapped = fsdp.FullyShardedDataParallel(model(), sharding_strategy=kind, use_orig_params=True, device_id="cpu")
    return train(wrapped, 3)


STAGES, WIDTH = 4, 8


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(STAGES)])


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, WIDTH, generator=generator), torch.randn(12, WIDTH, generator=generator)


def of_one_process() -> tuple[torch.Tensor, list[float], list[torch.Tensor]]:
    """The output, the loss of each of four micro-batches, and the gradients of the mean of these losses."""
    whole, (data, target) = layers(), examples()
    losses = [
        nn.functional.mse_loss(whole(part), wanted) for part, wanted in zip(data.chunk(4), target.chunk(4), strict=True)
    ]
    torch.stack(losses).mean().backward()
    return whole(data), [loss.item() for loss in losses], [parameter.grad for parameter in whole.parameters()]


def check(schedule: Any, parts: dict[int, nn.Module]) -> None:
    """Run the schedule twice with these stages of this rank, and compare with one process."""
    output, losses, gradients = of_one_process()
    data, target = examples()
    for _ in range(2):
        seen: list[torch.Tensor] = []
        for part in parts.values():
            part.zero_grad()
        first, last = 0 in parts, STAGES - 1 in parts
        got = schedule.step(*[data] * first, target=target if last else None, losses=seen if last else None)
        if last:
            assert torch.allclose(got, output, atol=1e-6)
            assert torch.allclose(torch.stack(seen), torch.tensor(losses), atol=1e-6)
        for number, part in parts.items():
            for one, other in zip(part.parameters(), gradients[2 * number :][:2], strict=True):
                assert torch.allclose(one.grad, other, atol=1e-6), number
    assert len(set(losses)) == 4


@pytest.mark.parametrize(
    ("name", "size", "hosts"),
    [
        *((name, 4, "2x2") for name in ("ScheduleGPipe", "Schedule1F1B")),
        *((name, 2, "2") for name in ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble")),
    ],
)
@in_process_group("size", hosts="hosts")
def test_pipelines(name: str, size: int, hosts: str) -> None:
    """One stage on each of four ranks, or two on each of two."""
    from torch.distributed import pipelining

    whole = layers()
    parts: dict[int, nn.Module] = {number: whole[number] for number in range(dist.get_rank(), STAGES, size)}
    stages: list[Any] = [
        pipelining.PipelineStage(part, number, STAGES, torch.device("cpu")) for number, part in parts.items()
    ]
    given = stages if len(stages) > 1 else stages[0]
    check(getattr(pipelining, name)(given, n_microbatches=4, loss_fn=nn.functional.mse_loss), parts)


@pytest.mark.ranks(4, hosts="2x2", backend="unisono")
def test_stages_that_are_replicated() -> None:
    """Two pipelines of two ranks each, on other examples, whose gradients are averaged."""
    from torch.distributed import pipelining
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "stages"))
    copy, number = mesh.get_coordinate() or (0, 0)
    whole, (data, target) = layers(), examples()
    nn.functional.mse_loss(whole(data), target).backward()
    half = nn.Sequential(*layers()[2 * number :][:2])
    stage = pipelining.PipelineStage(half, number, 2, torch.device("cpu"), group=mesh.get_group("stages"))
    schedule = pipelining.ScheduleGPipe(stage, n_microbatches=3, loss_fn=nn.functional.mse_loss)
    schedule.step(*[data.chunk(2)[copy]] * (not number), target=target.chunk(2)[copy] if number else None)
    for one, other in zip(half.parameters(), list(whole.parameters())[4 * number :], strict=False):
        dist.all_reduce(one.grad, dist.ReduceOp.AVG, mesh.get_group("copies"))
        assert torch.allclose(one.grad, other.grad, atol=1e-6)


class Block(nn.Module):
    """A transformer's layer: attention with 6 heads of 4, and an MLP of 18."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.LayerNorm(24), nn.LayerNorm(24)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))
        self.up, self.down = nn.Linear(24, 18), nn.Linear(18, 24)
        for norm in (self.first, self.second):
            nn.init.normal_(norm.weight)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """(batch, length, 24), of the length or a part of it."""
        normed = self.first(data)
        q, k, v = (part(normed).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        data = data + self.o(heads.transpose(1, 2).flatten(2))
        return data + self.down(nn.functional.gelu(self.up(self.second(data))))


@pytest.mark.parametrize(("size", "sequence"), [(2, False), (3, True)], ids=["whole sequence", "sequence in pieces"])
@in_process_group("size")
def test_transformer_layer_in_pieces(size: int, sequence: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor import parallel as tp

    mesh, whole = init_device_mesh("cpu", (size,)), Block()
    layout = Shard(1) if sequence else Replicate()
    plan: dict[str, Any] = {name: tp.ColwiseParallel(input_layouts=layout) for name in ("q", "k", "v", "up")}
    plan |= {name: tp.RowwiseParallel(output_layouts=layout) for name in ("o", "down")}
    if sequence:
        plan |= {name: tp.SequenceParallel(use_local_output=True) for name in ("first", "second")}
    pieces = tp.parallelize_module(copy.deepcopy(whole), mesh, plan)
    assert pieces.up.weight.to_local().shape == (18 // size, 24)

    data = torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(1))
    expected = whole(data)
    expected.square().sum().backward()
    mine = distribute_tensor(data, mesh, [layout]).to_local()
    got = pieces(mine)
    got.square().sum().backward()
    got = DTensor.from_local(got, mesh, [layout]).full_tensor()
    assert torch.allclose(got, expected, atol=1e-4)
    for (name, one), other in zip(pieces.named_parameters(), whole.parameters(), strict=True):
        gradient = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
        assert torch.allclose(gradient, other.grad, atol=1e-3), name


@pytest.mark.ranks(4, hosts="2x2", backend="unisono")
def test_layouts_of_a_tensor_on_a_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    me, mesh = dist.get_rank(), init_device_mesh("cpu", (2, 2))
    whole = torch.arange(35.0).reshape(7, 5)
    parts = whole.tensor_split([3], dim=1)
    twice = distribute_tensor(whole, mesh, [Shard(0), Shard(0)])  # rows 2, 2, 2, 1
    assert torch.equal(twice.to_local(), whole.tensor_split([2, 4, 6])[me])
    for layouts in ([Shard(1), Shard(0)], [Replicate(), Shard(1)], [Shard(0), Replicate()]):
        assert torch.equal(twice.redistribute(mesh, layouts).full_tensor(), whole)
    both = DTensor.from_local(whole * 10**me, mesh, [Partial(), Partial()])
    assert torch.equal(both.redistribute(mesh, [Shard(0), Shard(1)]).full_tensor(), whole * 1111)
    columns = DTensor.from_local(parts[me % 2] * 10**me, mesh, [Partial(), Shard(1)], shape=(7, 5), stride=(5, 1))
    assert torch.equal(columns.full_tensor(), torch.cat([parts[0] * 101, parts[1] * 1010], 1))
