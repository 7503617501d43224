"""Calls of sub-groups: right results with many groups at work at once, in any memory, from any thread."""

from __future__ import annotations

import threading

import pytest
import torch

import unisono
from tests.support.worlds import Worlds
from unisono import testing as oracle
from unisono.calls.groups import new_group, split


def values(world_rank: int, count: int, seed: int) -> torch.Tensor:
    """Small integers, different on every rank and in every place: all sums of them are exact."""
    return ((torch.arange(count) * 7 + world_rank * 13 + seed * 5) % 31 - 15).float()


def check_all_collectives(group: unisono.Group, count: int, *, shared: bool = False, seed: int = 0) -> None:
    """Every collective on blocks of `count` elements, against the oracle."""

    def mine(blocks: int = 1) -> torch.Tensor:
        return room(blocks).copy_(values(group.world_ranks[group.rank], blocks * count, seed))

    def room(blocks: int = 1) -> torch.Tensor:
        empty = group.empty if shared else torch.empty
        return empty(blocks * count, dtype=torch.float32)

    def all_of(blocks: int = 1) -> list[torch.Tensor]:
        return [values(rank, blocks * count, seed) for rank in group.world_ranks]

    me, size, root = group.rank, group.size, seed % group.size
    tensor = mine()
    unisono.all_reduce(tensor, "max", group)
    assert torch.equal(tensor, oracle.all_reduce(all_of(), "max")[me])
    tensor = mine()
    unisono.broadcast(tensor, root, group)
    assert torch.equal(tensor, oracle.broadcast(all_of(), root)[me])
    tensor = mine()
    unisono.reduce(tensor, root, group=group)
    assert torch.equal(tensor, oracle.reduce(all_of(), root)[me])
    table = room(size)
    unisono.all_gather_single(table, mine(), group)
    assert torch.equal(table, oracle.all_gather(all_of())[me])
    tensor = room()
    unisono.reduce_scatter_single(tensor, mine(size), group=group)
    assert torch.equal(tensor, oracle.reduce_scatter(all_of(size))[me])
    table = room(size)
    unisono.all_to_all_single(table, mine(size), group=group)
    assert torch.equal(table, oracle.all_to_all(all_of(size))[me])
    tensor = room()
    unisono.scatter(tensor, list(mine(size).chunk(size)) if me == root else None, root, group)
    assert torch.equal(tensor, oracle.scatter(list(all_of(size)), root)[me])
    blocks = [room() for _ in range(size)] if me == root else None
    unisono.gather(mine(), blocks, root, group)
    if blocks:
        assert torch.equal(torch.cat(blocks), torch.cat(all_of()))
    unisono.barrier(group)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("ranks", [2, 3, 5, 7])
def test_disjoint_groups_at_once(worlds: Worlds, ranks: int) -> None:
    def halves() -> None:
        rank = unisono.get_rank()
        group = split(int(rank > ranks // 2), -rank)
        assert isinstance(group, unisono.Group)
        for seed, count in enumerate((1, 1000, 300_000) if ranks < 5 else (1, 20_000)):
            check_all_collectives(group, count, shared=bool(seed % 2), seed=seed)

    worlds(ranks).run(halves)


def test_rows_and_columns_of_a_grid(worlds: Worlds) -> None:
    def grid() -> float:
        row_number, column_number = divmod(unisono.get_rank(), 2)
        row, column = split(row_number), split(column_number)
        assert isinstance(row, unisono.Group)
        assert isinstance(column, unisono.Group)
        for seed in range(6):
            for group in (row, column) if seed % 2 else (column, row):
                check_all_collectives(group, 3000, shared=seed > 2, seed=seed)
        total = torch.full((10,), float(unisono.get_rank()))
        unisono.all_reduce(total, group=row)
        unisono.all_reduce(total, group=column)
        return total[0].item()

    assert worlds(4).run(grid) == [6.0] * 4


def test_shared_tensors_are_zero_copy_in_sub_groups(worlds: Worlds) -> None:
    """Whatever group they were made for; so no byte of them is seen in the staging area."""

    def zero_copy() -> list[bool]:
        rank = unisono.get_rank()
        group = split(rank % 2, -rank)
        assert isinstance(group, unisono.Group)
        tensors = [unisono.empty(50_000), group.empty(50_000), unisono.share_(torch.empty(50_000)), torch.empty(50_000)]
        staged = []
        for seed, tensor in enumerate(tensors):
            tensor.copy_(values(rank, 50_000, seed))
            unisono.all_reduce(tensor, group=group)
            assert torch.equal(tensor, sum(values(member, 50_000, seed) for member in group.world_ranks))
            staged.append(staging_in_use(group))
        return staged

    assert worlds(4).run(zero_copy) == [[False, False, False, True]] * 4


def staging_in_use(group: unisono.Group) -> bool:
    """Is there anything but zeros in this rank's staging area?"""
    arena = group.host.arena
    staging = torch.frombuffer(arena.map, dtype=torch.uint8, offset=arena.stage(group.rank) - arena.base)
    return bool(staging[: arena.stage_stride].any())


def test_two_groups_from_two_threads(worlds: Worlds) -> None:
    """The threads' calls interleave differently on every rank; each group keeps its own order."""

    def threads() -> None:
        rank = unisono.get_rank()
        groups = [split(rank % 2), new_group()]
        failed: list[BaseException] = []

        def work(group: unisono.Group) -> None:
            try:
                for seed in range(10):
                    check_all_collectives(group, 500, shared=bool(seed % 2), seed=seed)
            except BaseException as error:  # noqa: BLE001  told below
                failed.append(error)

        started = [threading.Thread(target=work, args=(group,)) for group in groups]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        if failed:
            raise failed[0]

    worlds(4).run(threads)


def test_one_group_from_two_threads(worlds: Worlds) -> None:
    """Its calls run one after the other, so none is lost or torn."""

    def threads() -> list[float]:
        group = new_group([0, 2])
        if not group:
            return [4.0, 400.0]
        sums: list[float] = []

        def work() -> None:
            for _ in range(100):
                one = torch.ones(1)
                unisono.all_reduce(one, group=group)
                sums.append(one.item())

        started = [threading.Thread(target=work) for _ in range(2)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        last = torch.full((1,), 2.0)
        unisono.all_reduce(last, group=group)
        return [last.item(), sum(sums)]

    assert worlds(3).run(threads) == [[4.0, 400.0]] * 3


def test_calls_in_the_background_keep_their_order(worlds: Worlds) -> None:
    def background() -> list[float]:
        group = split(unisono.get_rank() % 2)
        assert isinstance(group, unisono.Group)
        tensor = torch.full((3000,), float(unisono.get_rank() + 1))
        works = []
        for _ in range(5):
            works.append(unisono.all_reduce(tensor, group=group, async_op=True))
            works.append(unisono.broadcast(tensor, 0, group, async_op=True))
        unisono.all_reduce(tensor, group=group)
        assert all(work.is_success() for work in works if work is not None)
        group.close()
        return tensor.unique().tolist()

    assert worlds(4).run(background) == [[4.0 * 32], [6.0 * 32]] * 2


def test_background_calls_end_before_the_function_does(worlds: Worlds) -> None:
    """Peers still need them, and must not hear that this rank has returned."""

    def leave_early(rank_that_waits: int) -> float:
        group = new_group()
        assert isinstance(group, unisono.Group)
        tensor = torch.full((200_000,), float(group.rank))
        work = unisono.all_reduce(tensor, group=group, async_op=True, algorithm="ring")
        if group.rank == rank_that_waits and work is not None:
            work.wait()
            return tensor[-1].item()
        return 0.0

    for rank in range(3):
        assert worlds(3).run(leave_early, rank)[rank] == 3.0
