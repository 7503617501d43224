"""Groups are cheap: hundreds at once. What they keep for calls ends with them."""

import gc
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.fuzz.ranks import make_every_call
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.calls.groups import destroy_group, new_group, split


def total(group: unisono.Group, tensor: torch.Tensor) -> float:
    tensor.fill_(float(group.world_ranks[group.rank] + 1))
    unisono.all_reduce(tensor, group=group)
    return tensor[-1].item()


def used() -> dict[str, int]:
    """What this process and its world use, but for garbage."""
    world = unisono.init()
    assert not any(map(world.liveness.gone, range(world.size))), "from now on it has a descriptor of each"
    gc.collect()
    unisono.barrier()  # no rank is at work while the others look
    found = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "mappings": Path("/proc/self/maps").read_text().count("memfd:unisono"),
        "shared": os.stat(world.engine.arena.fd).st_blocks * 512,
    }
    unisono.barrier()
    return found


def grown(before: dict[str, int], **most: int) -> dict[str, int]:
    """What there is more of than before, by more than this. There may be less: threads of earlier tests end late."""
    limits, now = {"descriptors": 0, "threads": 0, "mappings": 0, **most}, used()
    return {what: now[what] - before[what] for what, limit in limits.items() if now[what] - before[what] > limit}


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(2, 3)
def test_two_hundred_at_once() -> None:
    before, groups = used(), [new_group() for _ in range(200)]
    assert len({group.engine.arena.start for group in groups}) == 200
    assert not grown(before)
    for k, group in enumerate(groups):
        tensor = torch.full((50,), float(k + group.rank))
        unisono.all_reduce(tensor, "max", group)
        assert tensor.tolist() == [k + group.size - 1.0] * 50
    for group in groups:
        destroy_group(group)
    unisono.barrier()
    destroy_group(new_group())
    # What the heap keeps is bookkeeping of its own: less than a page for each of the groups that were alive.
    assert not grown(before, shared=200 * 4095)


@pytest.mark.ranks(2)
def test_worker_thread_ends_with_its_group() -> None:
    """Closed or dropped, while their last call still runs or afterwards."""
    before = used()
    for k in range(12):
        group = new_group()
        tensor = torch.full((50_000,), 1.0)
        work = unisono.all_reduce(tensor, group=group, async_op=True)
        threads = [one for one in threading.enumerate() if one.name == f"unisono {group.name}"]
        assert len(threads) == 1
        if k % 4 == 0:
            work.wait()
        if k % 2 == 0:
            group.close()
        del group
        work.wait()
        threads[0].join(20)
        assert not threads[0].is_alive()
        assert tensor.unique().tolist() == [2.0]
    assert not grown(before)


@pytest.mark.parametrize("first", range(3))
@pytest.mark.ranks(3)
def test_left_group_serves_those_who_stay(first: int) -> None:
    """Its memory is not used again before the last has left, in whatever order they leave."""
    rank = unisono.get_rank()
    group, pair = new_group(), new_group([r for r in range(3) if r != first])
    start, size = group.engine.arena.start, group.engine.arena.end - group.engine.arena.start
    if rank == first:
        group.close()
    unisono.barrier()
    fresh = new_group()
    assert not start <= fresh.engine.arena.start < start + size
    noise = [unisono.empty(5000).fill_(9.0) for _ in range(20)]
    assert total(fresh, torch.empty(2000)) == 6.0
    if rank != first:
        with pytest.raises(unisono.PeerGone, match=f"rank {first} .* left the group"):
            unisono.all_reduce(torch.ones(4), group=group)
        assert total(pair, torch.empty(2000)) == 6.0 - (first + 1)
    assert all((tensor == 9).all() for tensor in noise)
    group.close()
    unisono.barrier()
    new_group()
    assert group.engine.arena not in group.engine.lender.left


@pytest.mark.ranks(3)
def test_reachable_memory_lives_until_all_left() -> None:
    """A progress engine has rings in its rank's heap, which peers read after their sender has left."""

    class Engine:
        def close(self) -> None:
            """Nothing is on its way."""

    group = new_group()
    group.progress_engine = Engine()
    engine = weakref.ref(group.progress_engine)
    if unisono.get_rank() != 2:
        group.close()
    unisono.barrier()
    destroy_group(new_group())
    assert engine() is not None
    unisono.barrier()
    group.close()
    destroy_group(new_group())
    assert engine() is None
    destroy_group(new_group())
    assert group.engine.arena not in group.engine.lender.left


@in_new_world(3)
def test_closing_the_world_closes_its_groups() -> None:
    """Also to calls that are known."""
    group, tensor = split(unisono.get_rank() % 2), torch.ones(100_000)
    nested = new_group(group=group)
    for one in (group, nested):
        for _ in range(3):
            unisono.all_reduce(tensor, group=one)
    work = unisono.all_reduce(tensor, group=group, async_op=True)
    destroy_group(unisono.init())
    assert work.is_success()
    for one in (group, nested):
        with pytest.raises(unisono.NotInitialized, match=r"is closed.*unisono\.new_group\(\)"):
            unisono.all_reduce(tensor, group=one)


@pytest.mark.ranks(2, hosts="2x1")
def test_forked_child_leaves_groups_alone() -> None:
    """Neither closing and dropping them there, nor dropping tensors, takes anything from the parent."""
    group = split(0, -unisono.get_rank())
    tensor = unisono.empty(1 << 20).fill_(1.0)
    unisono.all_reduce(tensor, group=group)
    child = os.fork()
    if child == 0:
        try:
            unisono.all_reduce(tensor, group=group)
        except unisono.NotInitialized:
            group.close()
            unisono.shutdown()
            del group, tensor
            gc.collect()
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    unisono.all_reduce(tensor, group=group)
    assert total(group, torch.empty(3)) == 3.0
    assert tensor.unique().tolist() == [4.0]


def coalesced(group: unisono.Group, **how: Any) -> list[Any]:
    return [unisono.all_reduce_coalesced([torch.ones(3), torch.ones(2, 6).t()], group=group, **how)]


def messages(group: unisono.Group, count: int) -> list[Any]:
    work = unisono.irecv(None, (group.rank + 1) % group.size, group)
    unisono.send(torch.ones(count), (group.rank - 1) % group.size, group)
    return [work]


USES: dict[str, Callable[[unisono.Group], list[Any]]] = {
    "a call": coalesced,
    "in the background": partial(coalesced, async_op=True),
    "a short message": partial(messages, count=1),
    "a long message": partial(messages, count=300_000),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.ranks(2, hosts="2x2")
def test_dropped_group_needs_no_collector(use: str) -> None:
    gc.collect()
    gc.disable()
    group = new_group()
    works = USES[use](group)
    assert all(work.wait() for work in works if work is not None)
    dropped = weakref.ref(group)
    unisono.barrier()
    del group
    try:
        until(lambda: dropped() is None, 20.0)  # the thread that makes calls may hold it a little longer
    finally:
        gc.enable()


def nothing_left(refs: list[weakref.ref[Any]]) -> bool:
    """Have they gone, and the threads that free what they were the last to hold?"""
    unisono.init().engine.lender.collect()
    gc.collect()
    threads = [one for one in threading.enumerate() if one.name.startswith("unisono messages")]
    return not threads and all(ref() is None for ref in refs)


def free_bytes() -> int:
    """Of this rank's heap, when all ranks have given back what they lent."""
    unisono.barrier()
    unisono.init().engine.lender.collect()
    heap = unisono.init().engine.heap
    heap._sort()
    return sum(nbytes for _, nbytes in heap._free) + heap._idle


@pytest.mark.sampled
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
@pytest.mark.ranks(2, hosts=["2x1", "2+1"])
def test_used_groups_leave_nothing_behind(closes: bool) -> None:
    free = []
    for _ in range(3):
        group = unisono.new_group()
        sub = unisono.new_group([0, group.size - 1], group=group)
        groups = [one for one in (group, sub) if isinstance(one, unisono.Group)]
        for one in groups:
            make_every_call(one)
        parts = [
            (one, one.engine, one.engine.arena, one.progress_engine, one.span, *one.plans.values()) for one in groups
        ]
        refs = [weakref.ref(part) for some in parts for part in some if part is not None]
        if closes:
            for one in groups:
                unisono.destroy_group(one)
        del group, sub, groups, one, parts
        until(partial(nothing_left, refs), 20.0)
        free.append(free_bytes())
    assert free[1] == free[2], "the first round makes what the world itself keeps"
