"""Programs with tensors of a GPU, where there is one: our groups beside NCCL's, and copies under Gloo's name."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.torch_ranks import TorchRanks, in_process_group

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() == 0, reason="needs a GPU"
)  # is_available would forbid to fork


def beside_nccl() -> None:
    """CPU tensors go to our group, tensors of the GPU to NCCL, which takes one rank of a GPU into a group."""
    me, size = dist.get_rank(), dist.get_world_size()
    alone: Any = [dist.new_group([rank]) for rank in range(size)][me]
    torch.cuda.set_device(0)
    on_gpu, on_cpu = torch.arange(8.0, device="cuda"), torch.full((1000,), me + 1.0)
    dist.all_reduce(on_gpu, group=alone)
    dist.all_reduce(on_cpu)
    assert on_gpu.tolist() == list(range(8))
    assert on_cpu.eq(size * (size + 1) / 2).all()
    assert type(alone._get_backend(torch.device("cuda"))).__name__ == "ProcessGroupNCCL"
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, me, group=dist.new_group(backend="cpu:unisono"))
    assert objects == list(range(size))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda(), process_group=alone)
    for _ in range(2):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
    gradient = model.module.weight.grad.cpu()
    dist.all_reduce(gradient)
    assert gradient.eq(4.0 * size).all()


@pytest.mark.parametrize(("backend", "named"), [("cpu:unisono,cuda:nccl", 0), ("cpu:gloo,cuda:nccl", 2)])
def test_beside_nccl(ranks: TorchRanks, backend: str, named: int) -> None:
    ranks(2, backend, named=range(named))(beside_nccl)


@in_process_group(2, "gloo", named=range(2))
def test_named_gloo_copies_gpu_tensors() -> None:
    me, size = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(0)
    for count in (1, 1000, 1 << 20):
        tensor = torch.full((count,), me + 1.0, device="cuda")
        for turn in range(1, 4):  # pinned memory comes back: nothing of an earlier call is left in it
            dist.all_reduce(tensor)
            assert tensor.eq(3.0 * 2 ** (turn - 1)).all()
        gathered = [torch.empty(count, 2, device="cuda").t() for _ in range(size)]
        dist.all_gather(gathered, torch.full((2, count), float(me), device="cuda"))
        assert all(part.eq(rank).all() for rank, part in enumerate(gathered))
        work = dist.broadcast(tensor.fill_(me), 1, async_op=True)
        assert work.wait()
        assert tensor.eq(1.0).all()


@pytest.mark.ranks(2, backend="unisono")
def test_our_own_name_refuses_tensors_of_a_gpu() -> None:
    with pytest.raises(unisono.ArgumentError, match="expected one on the CPU"):
        dist.all_reduce(torch.ones(2, device="cuda"))
