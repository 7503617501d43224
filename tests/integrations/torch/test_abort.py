"""`ProcessGroup.abort`: every wait ends on all ranks, the processes go on, also without rank 0 and torch's store."""

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import DEADLINE_S, FAILED, in_new_world
from tests.support.programs import free_port
from tests.support.torch_ranks import in_process_group, total
from tests.support.waiting import once_waiting, until
from unisono.integrations.torch import register

both_names = pytest.mark.parametrize("backend", ["unisono", "gloo"])
CALLS: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda group: dist.all_reduce(torch.ones(3), group=group),
    "async_op": lambda group: dist.all_reduce(torch.ones(3), group=group, async_op=True).wait(),
    "irecv": lambda group: dist.irecv(torch.ones(3), 1, group=group).wait(),  # type: ignore[union-attr]
    "all_gather_object": lambda group: dist.all_gather_object([None, None], "x", group=group),
    "monitored_barrier": lambda group: dist.monitored_barrier(group),
}


@pytest.mark.parametrize("name", CALLS)
@both_names
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


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.ranks(2, backend="unisono")
def test_hooks_run_before_a_timeout(tmp_path: Path, name: str) -> None:
    done, seen = tmp_path / "done", list[str]()
    group: Any = dist.new_group(timeout=timedelta(seconds=0.3))
    group.register_abort_hook(1, lambda: seen.append("late"))
    if dist.get_rank() == 0:
        with pytest.raises(unisono.WaitTimeout, match="rank 1"):
            CALLS[name](group)
        assert seen[0] == "late"
        done.touch()
    else:
        until(done.exists)


@pytest.mark.ranks(3, backend="unisono")
def test_new_groups_after_aborting_all(tmp_path: Path) -> None:
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
    dist.init_process_group("unisono", f"file://{tmp_path}/again", rank=me, world_size=3)
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
