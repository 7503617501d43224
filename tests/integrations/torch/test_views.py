"""Views made before a call, of tensors that require grad: what runs over Gloo runs over ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.torch_ranks import TorchRanks


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
def test_distribute_tensor_leaves_views_usable(ranks: TorchRanks, backend: str) -> None:
    def work() -> list[Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

        mesh, found = init_device_mesh("cpu", (2,)), []
        for placement in (Replicate(), Shard(0), Shard(1), Partial()):
            leaf = (torch.arange(16.0).view(4, 4) + 100 * dist.get_rank()).requires_grad_()
            first, _ = leaf.chunk(2)
            left, _ = leaf.split(2, dim=1)
            spread = distribute_tensor(leaf, mesh, [placement])
            (first.square().sum() + left.sum()).backward()
            assert leaf.grad is not None
            found.append((spread.to_local().tolist(), leaf.grad.tolist()))
        return found

    got = ranks(2, backend)(work)
    assert got[0][0][0] == got[1][0][0]  # replicated
    assert got[0][1][0] != got[1][1][0]  # sharded


def test_a_model_s_parameters_are_sent_between_forward_passes(ranks: TorchRanks) -> None:
    def work() -> list[Any]:
        torch.manual_seed(dist.get_rank())
        model = nn.Linear(4, 4)
        halves = model.weight.chunk(2)
        for parameter in model.parameters():
            dist.broadcast(parameter, 0)  # no torch.no_grad(): Gloo does not ask for it
        (model(torch.ones(2, 4)).sum() + halves[0].sum()).backward()
        return [parameter.grad.tolist() for parameter in model.parameters() if parameter.grad is not None]

    ours = ranks(2)(work)
    assert ours == ranks(2, "gloo")(work)
    assert len(ours[0]) == 2
