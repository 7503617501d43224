"""Groups that lose a rank: `abort` ends every wait, `shrink_group` goes on without it, also without torch's store."""

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import unisono
from tests.support.on_ranks import DEADLINE_S, FAILED, in_new_world
from tests.support.programs import free_port
from tests.support.torch_ranks import TorchRanks, in_process_group, total
from tests.support.waiting import once_waiting, until
from unisono.integrations.torch import register

CALLS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda group: dist.all_reduce(torch.ones(3), group=group),
    "async_op": lambda group: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(),
    "irecv": lambda group: dist.irecv(torch.ones(3), 1, group=group).wait(),
    "all_gather_object": lambda group: dist.all_gather_object([None, None], "x", group=group),
    "monitored_barrier": lambda group: dist.monitored_barrier(group),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(2, "backend", named=range(2), hosts="1+1")
def test_hooks_run_before_an_abort(tmp_path: Path, name: str, backend: str) -> None:
    waits, seen, me = tmp_path / "waits", list[tuple[str, bool]](), dist.get_rank()
    group: Any = dist.new_group()
    assert group.supports_abort_hooks
    for hook_id, word in ((2, "second"), (1, "first"), (3, "removed")):
        group.register_abort_hook(hook_id, lambda word=word: seen.append((word, group.group.broken is None)))
    group.register_abort_hook(0, lambda: 1 // 0)  # its error is logged
    group.unregister_abort_hook(3)
    with pytest.raises(unisono.MismatchError):
        dist.all_reduce(torch.ones(1 + me), group=group)
    assert seen == []
    if me == 0:
        once_waiting(waits.touch)
        for kind in (unisono.PeerFailed, dist.DistBackendError):
            with pytest.raises(kind, match=r"rank 1 .*aborted group"):
                CALLS[name](group)
    else:
        until(waits.exists)
        group.abort()
    assert seen[:2] == [("first", me == 1), ("second", me == 1)]
    dist.barrier()


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_process_group(3, "backend", named=range(3))
def test_new_groups_after_aborting_all(tmp_path: Path, backend: str) -> None:
    """A rank that waits in a sub-group hears of it, too."""
    waits, ended = tmp_path / "waits", tmp_path / "ended"
    me, before = dist.get_rank(), len(os.listdir("/proc/self/fd"))
    pair = dist.new_group([0, 1])
    if me == 0:
        once_waiting(waits.touch)
        with pytest.raises(unisono.PeerFailed, match="rank 2 aborted group"):
            dist.all_reduce(torch.ones(3), group=pair)
        ended.touch()
    else:
        until((waits if me == 2 else ended).exists)
    dist.distributed_c10d._abort_process_group()
    del pair
    assert not dist.is_initialized()
    dist.init_process_group(backend, f"file://{tmp_path}/again", rank=me, world_size=3)
    tensor = torch.full((3,), 1.0 + me)
    dist.all_reduce(tensor)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert tensor.tolist() == [6.0] * 3


@pytest.mark.ranks(2, backend="unisono")
def test_abort_ends_the_making_of_a_group(tmp_path: Path) -> None:
    """Rank 1 waits for rank 0, which leads the new group and does not come."""
    waits = tmp_path / "waits"
    world: Any = dist.group.WORLD
    if dist.get_rank() == 1:
        once_waiting(waits.touch)
        with pytest.raises(unisono.PeerFailed, match=r"making the process group .* rank 0 aborted group"):
            dist.new_group(timeout=timedelta(seconds=DEADLINE_S))
    else:
        until(waits.exists)
        world.abort()


@pytest.mark.ranks(2, backend="unisono")
def test_ctrl_c_in_coalesced_calls_reaches_others() -> None:
    group: Any = dist.new_group()
    if dist.get_rank() == 0:
        with dist._coalescing_manager(group, async_ops=True) as manager:
            dist.all_reduce(torch.ones(3), group=group)
        once_waiting(lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            manager.wait()
    else:
        until(lambda: group.group.engine.arena.board(0).gave_up.number > 0)
    with pytest.raises(unisono.PeerFailed, match="interrupted by KeyboardInterrupt"):
        dist.barrier(group)
    dist.barrier()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize("local", [False, pytest.param(True, marks=pytest.mark.long)])
@in_new_world(4, return_exceptions=True, gives=[FAILED, 111.0, 111.0, 111.0])
def test_survivors_of_rank_0_make_new_groups(port: int, local: bool) -> float:
    """Those of Gloo, and a barrier of torch's, need its store, which has died with it."""
    register()
    me, store, seen = unisono.get_rank(), f"tcp://127.0.0.1:{port}", list[str]()
    dist.init_process_group("unisono", store, rank=me, world_size=4, timeout=timedelta(seconds=60))
    assert total() == 1111.0
    if me == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    world: Any = dist.group.WORLD
    world.register_abort_hook(1, lambda: seen.append("gone"))
    with pytest.raises(dist.DistBackendError):
        dist.barrier()
    assert seen == ["gone"]
    for _ in range(2):
        group: Any = dist.new_group([1, 2, 3], use_local_synchronization=local)
        assert total(group) == 1110.0
        dist.destroy_process_group(group)
    with pytest.raises(unisono.PeerGone, match=r"rank 0 \(world rank 0, pid .* in making the process group"):
        dist.new_group([0, me], use_local_synchronization=local)
    with pytest.raises(dist.DistNetworkError):
        dist.new_group([1, 2, 3], backend="gloo")
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    with pytest.raises(dist.DistNetworkError):
        dist.new_group([1, 2, 3])
    del os.environ["TORCH_DIST_INIT_BARRIER"]
    dist.destroy_process_group()
    dist.init_process_group("unisono", store, rank=me - 1, world_size=3, timeout=timedelta(seconds=60))
    found: float = total()
    dist.destroy_process_group()
    return found


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
        gradient(me)  # its imports take seconds, which a wait with a limit does not have
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
        inner = dist.group.WORLD.group  # that of this library
        until(lambda: all(inner.liveness.gone(rank) for rank in (1, 2)))
        with pytest.raises(unisono.PeerGone, match="shrink_group") as caught:
            dist.shrink_group([1])
        dist.shrink_group(list(caught.value.failed))
        mine = torch.tensor([1.0 + me])
        dist.all_reduce(mine)
        dist.all_reduce(mine, group=dist.new_group([0, 1]))
        return mine.item()

    assert ends_of(4, tmp_path, work) == [10.0, FAILED, FAILED, 10.0]
