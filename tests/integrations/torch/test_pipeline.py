"""Pipelines: what stages on several ranks compute is what their layers, one after the other, compute on one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

pytestmark = pytest.mark.filterwarnings("default")  # torch's own

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


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.ranks(4, backend="unisono")
def test_a_stage_on_each_rank(name: str) -> None:
    from torch.distributed import pipelining

    me = dist.get_rank()
    part = layers()[me]
    stage = pipelining.PipelineStage(part, me, STAGES, torch.device("cpu"))
    check(getattr(pipelining, name)(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss), {me: part})


@pytest.mark.parametrize("name", ["ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble"])
@pytest.mark.ranks(2, backend="unisono")
def test_two_stages_on_each_rank(name: str) -> None:
    from torch.distributed import pipelining

    whole, mine = layers(), (dist.get_rank(), dist.get_rank() + 2)
    parts: dict[int, nn.Module] = {number: whole[number] for number in mine}
    stages: list[Any] = [
        pipelining.PipelineStage(part, number, STAGES, torch.device("cpu")) for number, part in parts.items()
    ]
    check(getattr(pipelining, name)(stages, n_microbatches=4, loss_fn=nn.functional.mse_loss), parts)


@pytest.mark.ranks(4, backend="unisono")
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
