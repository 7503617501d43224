"""Calls of sub-groups: right results with many groups at work at once, in any memory, from any thread."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import unisono
from tests.fuzz.ranks import make_every_call
from tests.support.worlds import Worlds
from unisono.calls.groups import new_group, split


def values(world_rank: int, count: int, seed: int) -> torch.Tensor:
    """Small integers, different on every rank and in every place: all sums of them are exact."""
    return ((torch.arange(count) * 7 + world_rank * 13 + seed * 5) % 31 - 15).float()


@pytest.mark.ranks(4)
def test_shared_tensors_are_never_staged() -> None:
    """Whatever group they were made for; so no byte of them is seen in the staging area."""
    rank = unisono.get_rank()
    group = split(rank % 2, -rank)
    tensors = [unisono.empty(50_000), group.empty(50_000), unisono.share_(torch.empty(50_000)), torch.empty(50_000)]
    staged = []
    for seed, tensor in enumerate(tensors):
        tensor.copy_(values(rank, 50_000, seed))
        unisono.all_reduce(tensor, group=group)
        assert torch.equal(tensor, sum(values(member, 50_000, seed) for member in group.world_ranks))
        staged.append(staging_in_use(group))
    assert staged == [False, False, False, True]


def staging_in_use(group: unisono.Group) -> bool:
    """Is there anything but zeros in this rank's staging area?"""
    arena = group.engine.arena
    staging = torch.frombuffer(arena.map, dtype=torch.uint8, offset=arena.stage(group.rank) - arena.base)
    return bool(staging[: arena.stage_stride].any())


@pytest.mark.ranks(4)
def test_two_groups_from_two_threads() -> None:
    """The threads' calls interleave differently on every rank; each group keeps its own order."""
    rank = unisono.get_rank()
    groups = [split(rank % 2), new_group()]

    def work(group: unisono.Group) -> None:
        for seed in range(10):
            make_every_call(group, (500,), 10 * seed + group.world_ranks[0])

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(work, groups)] == [None] * 2


@pytest.mark.ranks(3)
def test_one_group_from_two_threads() -> None:
    """Its calls run one after the other, so none is lost or torn."""
    group = new_group([0, 2])
    if not group:
        return

    def work(calls: int) -> float:
        ones = [torch.ones(1) for _ in range(calls)]
        for one in ones:
            unisono.all_reduce(one, group=group)
        return torch.cat(ones).sum().item()

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(work, (100, 100))) == 400.0
    last = torch.full((1,), 2.0)
    unisono.all_reduce(last, group=group)
    assert last.item() == 4.0


@pytest.mark.ranks(4)
def test_calls_in_the_background_keep_their_order() -> None:
    group = split(unisono.get_rank() % 2)
    tensor = torch.full((3000,), float(unisono.get_rank() + 1))
    works = []
    for _ in range(5):
        works.append(unisono.all_reduce(tensor, group=group, async_op=True))
        works.append(unisono.broadcast(tensor, 0, group, async_op=True))
    unisono.all_reduce(tensor, group=group)
    assert all(work.is_success() for work in works if work is not None)
    group.close()
    assert tensor.unique().tolist() == [[4.0 * 32], [6.0 * 32]][unisono.get_rank() % 2]


def test_background_calls_end_before_a_run_does(worlds: Worlds) -> None:
    """Peers still need them, and must not hear that this rank has returned."""

    def leave_early(rank_that_waits: int) -> float:
        group = new_group()
        tensor = torch.full((200_000,), float(group.rank))
        work = unisono.all_reduce(tensor, group=group, async_op=True, algorithm="ring")
        if group.rank == rank_that_waits and work is not None:
            work.wait()
            return tensor[-1].item()
        return 0.0

    for rank in range(3):
        assert worlds(3).run(leave_early, rank)[rank] == 3.0
