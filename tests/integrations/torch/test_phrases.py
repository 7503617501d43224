"""Errors say what programs and torch's own tests look for, beside this library's own words."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.torch_ranks import TorchRanks

SHORT = timedelta(seconds=0.3)
WAITING = (
    "Rank {} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
    "Please check rank 0 logs for faulty rank."
)


@contextmanager
def detail() -> Iterator[None]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        yield
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def together(key: str) -> None:
    """Wait for all ranks without a call of the group."""
    store = dist.distributed_c10d._get_default_store()
    if store.add(key, 1) == dist.get_world_size():
        store.set(f"{key} all", "1")
    store.wait([f"{key} all"])


@pytest.mark.ranks(2, backend="unisono")
def test_a_time_out() -> None:
    group, tensor = dist.new_group(timeout=SHORT), torch.ones(3)
    calls: list[Callable[[], Any]] = [
        lambda: dist.recv(tensor, 1, group=group),
        lambda: group.recv_anysource([tensor], 0).wait(),
        lambda: group.recv([tensor], 1, 0).wait(timedelta(milliseconds=20)),
        lambda: dist.all_reduce(tensor, group=group),
    ]
    for call in calls if dist.get_rank() == 0 else ():
        with pytest.raises(RuntimeError, match=r"Look at what is missing(.|\n)* Timed out waiting"):
            call()
    together("all")


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_ranks_that_miss_a_monitored_barrier(ranks: TorchRanks, wait_all_ranks: bool) -> None:
    def work() -> str | None:
        me = dist.get_rank()
        if me in (1, 2):
            together("over")  # they come too late
        with pytest.raises(dist.DistBackendError) as caught:
            dist.monitored_barrier(timeout=SHORT, wait_all_ranks=wait_all_ranks)
        if me in (0, 3):
            together("over")
        assert isinstance(caught.value, unisono.WaitTimeout)
        assert caught.value.missing == ((1, 2) if wait_all_ranks else (1,))
        dist.barrier()
        return str(caught.value)

    said = ranks(4)(work)
    late = "Ranks 1, 2" if wait_all_ranks else "Rank 1"
    assert f"[Rank 0]: {late} failed to pass monitoredBarrier in 300 ms" in said[0]
    for rank in (1, 2, 3):
        assert WAITING.format(rank) in said[rank]


@pytest.mark.ranks(2, backend="unisono")
def test_a_monitored_barrier_without_time() -> None:
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier after 0 ms"):
            dist.monitored_barrier(timeout=timedelta(0))
    together("over")


@pytest.mark.ranks(2, backend="unisono")
def test_rank_0_misses_a_monitored_barrier() -> None:
    if dist.get_rank():
        from unisono.integrations.torch import composed_calls

        composed_calls._GRACE_S = 0.1
        with pytest.raises(RuntimeError, match=WAITING.format(1)):
            dist.monitored_barrier(timeout=SHORT)
    together("over")


def rooted(options: Any, root: int) -> Any:
    options.rootRank = root
    return options


@pytest.mark.parametrize("root", [-1, 2])
@pytest.mark.ranks(2, backend="unisono")
def test_a_wrong_root(root: int) -> None:
    group: Any = dist.group.WORLD
    x = torch.ones(3)
    calls: list[Callable[[], Any]] = [
        lambda: group.broadcast([x], rooted(dist.BroadcastOptions(), root)),
        lambda: group.reduce([x], rooted(dist.ReduceOptions(), root)),
        lambda: group.gather([], [x], rooted(dist.GatherOptions(), root)),
        lambda: group.scatter([x], [], rooted(dist.ScatterOptions(), root)),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=f"the ranks of this group(.|\n)*invalid root rank: {root}"):
            call()
        dist.barrier()


@pytest.mark.ranks(1, backend="unisono")
def test_empty_lists() -> None:
    group: Any = dist.group.WORLD
    for call in (group.allreduce, group.allreduce_coalesced, group.broadcast, group.reduce):
        with pytest.raises(RuntimeError, match="requires non-empty tensor list"):
            call([])


@pytest.mark.ranks(2, backend="unisono")
def test_with_detail_a_call_is_checked_before_it_returns() -> None:
    group: Any = dist.group.WORLD
    tensor, wrong = torch.ones(3), torch.ones(3 + dist.get_rank())
    with detail():
        with pytest.raises(RuntimeError, match="disagree"):
            group.allreduce([wrong])
        with pytest.raises(RuntimeError, match="disagree"):
            dist.all_reduce(wrong, async_op=True)
        assert group.allreduce([tensor]).is_completed()
    assert tensor.tolist() == [2.0] * 3
    pending = group.allreduce([wrong])
    with pytest.raises(RuntimeError, match="disagree"):
        pending.wait()


def test_with_detail_a_late_rank_is_named_as_by_a_monitored_barrier(ranks: TorchRanks) -> None:
    def work() -> str:
        group: Any = dist.new_group(timeout=SHORT)
        said = ""
        with detail():
            if dist.get_rank() != 1:
                with pytest.raises(RuntimeError) as caught:
                    group.allreduce([torch.ones(3)])
                said = str(caught.value)
        together("over")
        return said

    said = ranks(3)(work)
    assert "Rank 1 failed to pass monitoredBarrier in 300 ms" in said[0]
    assert WAITING.format(2) in said[2]


@pytest.mark.ranks(1, backend="unisono")
def test_errors_can_be_pickled() -> None:
    from unisono.integrations.torch.to_torch import for_torch

    late: Any = for_torch(unisono.WaitTimeout("all_reduce", 1.5, (1,), 0), "some phrase")
    again = pickle.loads(pickle.dumps(late))  # noqa: S301  our own bytes
    assert type(again) is type(late)
    assert str(again) == str(late)
    assert str(late).endswith("some phrase")
    assert again.missing == (1,)
    gone: Any = for_torch(unisono.PeerGone(1, 99, "was killed by signal 9", 0, "all_reduce"))
    assert "Connection closed by peer" in str(gone)
