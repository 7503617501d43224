"""torch.distributed.shrink_group: after a rank has died, the others go on, and train, in a smaller group."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unisono
from tests.support.on_ranks import FAILED
from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.skipif(not hasattr(dist, "shrink_group"), reason="this torch cannot shrink groups")


def gradient(me: int, *, dies: bool = False) -> float:
    """That of a model which all ranks of the default group train, each with other data. dies: in its backward pass."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    loss: Any = model(torch.tensor([[float(me)]])).sum()
    if dies:
        loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    loss.backward()
    return float(model.module.weight.grad)


def ends_of(size: int, folder: Path, work: Callable[[], Any]) -> list[Any]:
    """What the ranks return of a group in which some die; of these, their failures."""
    with unisono.World(size, timeout_s=60, return_exceptions=True) as world:
        return TorchRanks(lambda _: world, folder)(size)(work)


@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_train_on(tmp_path: Path, victim: int) -> None:
    """The error reaches them through torch's C++ code, from a bucket's all_reduce."""

    def work() -> float:
        me, row = dist.get_rank(), dist.new_group([0, 1, 3])
        gradient(me)  # imports much, for which there is no time later
        with pytest.raises(unisono.PeerGone) as caught:
            gradient(me, dies=me == victim)
        assert isinstance(caught.value, dist.DistBackendError)
        assert caught.value.failed == (victim,)
        smaller = dist.shrink_group(list(caught.value.failed))
        assert dist.group.WORLD is smaller
        assert row is not smaller
        assert (dist.get_world_size(), dist.get_backend()) == (3, "unisono")
        parts = [torch.zeros(1) for _ in range(3)]
        dist.all_gather(parts, torch.tensor([float(me)]))
        assert torch.cat(parts).tolist() == [rank for rank in range(4) if rank != victim]
        return gradient(me)

    mean = pytest.approx((6 - victim) / 3)
    assert ends_of(4, tmp_path, work) == [FAILED if rank == victim else mean for rank in range(4)]


@pytest.mark.ranks(4, backend="unisono")
def test_sub_group_shrinks() -> None:
    me, group = dist.get_rank(), dist.new_group([0, 1, 2])
    mine = torch.tensor([1.0 + me])
    if me in (0, 2):
        smaller = dist.shrink_group([1], group)
        dist.all_reduce(mine, group=smaller)
        assert dist.get_process_group_ranks(smaller) == [0, 2]
    dist.barrier()
    assert mine.item() == (4.0 if me != 1 else 2.0)


def test_unnamed_dead_rank_is_reported(tmp_path: Path) -> None:
    def work() -> float:
        me = dist.get_rank()
        dist.barrier()
        if me in (1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        inner = dist.group.WORLD.group  # type: ignore[union-attr]  # that of this library
        while not all(inner.liveness.gone(rank) for rank in (1, 2)):
            sys.stderr.flush()
        with pytest.raises(unisono.PeerGone, match="shrink_group") as caught:
            dist.shrink_group([1])
        dist.shrink_group(list(caught.value.failed))
        mine = torch.tensor([1.0 + me])
        dist.all_reduce(mine)
        pair = dist.new_group([0, 1])
        dist.all_reduce(mine, group=pair)
        return mine.item()

    assert ends_of(4, tmp_path, work) == [10.0, FAILED, FAILED, 10.0]
