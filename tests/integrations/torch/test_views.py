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


def calls(tensor: torch.Tensor) -> dict[str, Any]:
    """Calls that write the tensor, on rank 0 at least."""
    me = dist.get_rank()
    blocks = [tensor.clone(), tensor.clone()]
    return {
        "broadcast": lambda: dist.broadcast(tensor, 1),
        "broadcast, async": lambda: dist.broadcast(tensor, 1, async_op=True).wait(),
        "all_reduce": lambda: dist.all_reduce(tensor),
        "reduce": lambda: dist.reduce(tensor, 0),
        "scatter": lambda: dist.scatter(tensor, blocks if me else None, 1),
        "recv": lambda: dist.send(tensor, 0) if me else dist.recv(tensor, 1),
        "all_to_all_single": lambda: dist.all_to_all_single(tensor, blocks[0]),
    }


def test_writing_detached_tensors_and_without_grad_mode(ranks: TorchRanks) -> None:
    def work() -> list[Any]:
        found = []
        for name in calls(torch.ones(4)):
            for detached in (True, False):
                leaf = (torch.arange(4.0) + 10 * dist.get_rank()).requires_grad_()
                whole = leaf * 1
                parts = [*leaf.chunk(2), *whole.split(2)]
                for tensor in (leaf, whole):
                    with torch.set_grad_enabled(detached):
                        calls(tensor.detach() if detached else tensor)[name]()
                sum((k + 1) * part.sum() for k, part in enumerate(parts)).backward()  # type: ignore[union-attr]
                assert leaf.grad is not None
                got = name != "reduce" or dist.get_rank() == 0  # Gloo leaves partial sums elsewhere
                found.append((name, [leaf.tolist(), whole.tolist()] if got else [], leaf.grad.tolist()))
        return found

    assert ranks(2)(work) == ranks(2, "gloo")(work)


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


@pytest.mark.ranks(2, backend="unisono")
def test_backward_through_what_a_call_has_overwritten() -> None:
    weight = torch.ones(4, requires_grad=True)
    for name in calls(torch.ones(4)):
        for tensor in (torch.ones(4), weight * 2):  # one that an operation saves, and a result in the graph
            loss = (tensor * weight).sum()
            calls(tensor)[name]()
            if dist.get_rank() == 0:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()
