"""What goes wrong through torch.distributed: errors are ours and torch's at once, and name what to do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import unisono
from torch_ranks import TorchRanks

Worlds = Callable[[int], unisono.World]


@pytest.fixture
def ranks(worlds: Worlds, tmp_path: Path) -> TorchRanks:
    return TorchRanks(worlds, tmp_path)


def test_errors_are_ours_and_torchs(ranks: TorchRanks) -> None:
    def work() -> None:
        tensor = torch.ones(3 + dist.get_rank())
        for kind in (dist.DistBackendError, unisono.MismatchError, RuntimeError):
            with pytest.raises(kind, match="disagree"):
                dist.all_reduce(tensor)
            with pytest.raises(kind, match="disagree"):
                dist.all_reduce(tensor, async_op=True).wait()
        with pytest.raises(ValueError, match="the ranks of this group"):
            dist.group.WORLD.recv([tensor], 7, 0)
        dist.barrier()

    ranks(2)(work)


def test_tensors_without_elements_of_their_own(ranks: TorchRanks) -> None:
    def work() -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._functional_collectives import all_reduce
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        dist.all_reduce(torch.ones(3))  # the fast path knows such calls
        with FakeTensorMode():
            fake = torch.ones(3)
        mesh = init_device_mesh("cpu", (2,))
        parts = distribute_tensor(torch.ones(6), mesh, [Shard(0)])
        for tensor, words in ((fake, "fake"), (torch.ones(3, device="meta"), "meta"), (parts, "to_local")):
            with pytest.raises(unisono.ArgumentError, match=words):
                dist.group.WORLD.allreduce([tensor])
        promised = all_reduce(torch.ones(3), "sum", dist.group.WORLD)
        dist.all_reduce(promised)
        assert promised.sum().item() == 12.0

    ranks(2)(work)


def test_time_is_limited(ranks: TorchRanks) -> None:
    def work() -> None:
        store = dist.distributed_c10d._get_default_store()
        group = dist.new_group(timeout=timedelta(seconds=0.3))
        if dist.get_rank() == 0:
            with pytest.raises(unisono.WaitTimeout, match="rank 1"):
                dist.all_reduce(torch.ones(3), group=group)
            store.set("seen", "1")
        else:
            store.wait(["seen"])
        dist.barrier()
        dist.group.WORLD.set_timeout(timedelta(seconds=0.3))
        if dist.get_rank() == 0:
            pending = dist.all_reduce(torch.ones(3), async_op=True)
            with pytest.raises(unisono.WaitTimeout):
                pending.wait(timedelta(seconds=0.05))
            with pytest.raises(RuntimeError, match="rank 1"):
                pending.wait()
            store.set("seen too", "1")
        else:
            store.wait(["seen too"])

    ranks(2)(work)


def test_a_dead_rank_is_named(ranks: TorchRanks) -> None:
    def work() -> str:
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(3))
        assert isinstance(caught.value, unisono.PeerGone)
        raise ValueError(f"rank {caught.value.rank} is gone")

    with pytest.raises(unisono.UnisonoError, match="was killed by signal 9"):
        ranks(2)(work)


def test_an_aborted_group_ends_calls(ranks: TorchRanks) -> None:
    def work() -> None:
        group = dist.new_group()
        if dist.get_rank() == 1:
            group.abort()
        with pytest.raises(dist.DistBackendError, match="aborted the group"):
            dist.all_reduce(torch.ones(3), group=group)
        dist.barrier()

    ranks(2)(work)


def test_a_profiler_sees_calls(ranks: TorchRanks) -> None:
    def work() -> None:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU]) as seen:
            dist.all_reduce(torch.ones(3))
            dist.all_gather_into_tensor(torch.empty(2), torch.ones(1))
        names = {event.key for event in seen.key_averages()}
        assert {"unisono:allreduce", "unisono:all_gather_single"} <= names

    ranks(2)(work)
