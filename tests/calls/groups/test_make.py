"""Making groups: members, their order and numbers, limits of what is kept, and ranks that a group leaves out."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unisono
from unisono.base.errors import ArgumentError, DTypeError
from unisono.calls.groups import (
    destroy_group,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    new_group,
    split,
)
from unisono.hosts.sentinel import board_replicas
from unisono.ranks.group.current import NonMember
from unisono.schedule.algorithms import all_gather


def members_by_call(group: unisono.Group) -> list[int]:
    """The members, as an all_gather finds them."""
    table = torch.full((group.size,), -1)
    unisono.all_gather_single(table, torch.tensor([unisono.get_rank()]), group)
    return table.tolist()


@pytest.mark.ranks(2, 5)
def test_split_makes_two_groups(ranks: int) -> None:
    rank = unisono.get_rank()
    group, expected = split(rank % 2), list(range(rank % 2, ranks, 2))
    assert (group.rank, group.size) == (expected.index(rank), len(expected))
    assert members_by_call(group) == get_process_group_ranks(group) == expected


@pytest.mark.parametrize(
    ("keys", "order"), [([0, -1, 5, -(1 << 63), (1 << 63) - 1], [3, 1, 0, 2, 4]), ([1, 0, 1, 0, 1], [1, 3, 0, 2, 4])]
)
@pytest.mark.ranks(5)
def test_keys_order_the_members(keys: list[int], order: list[int]) -> None:
    group = split(0, keys[unisono.get_rank()])
    assert group.world_ranks[group.rank] == unisono.get_rank()
    assert members_by_call(group) == order


@pytest.mark.parametrize("colors", [[None, 7, -1, 7], [-5, None, None, -2], [3, 2, 1, 0]])
@pytest.mark.ranks(4)
def test_without_a_color_a_rank_is_in_no_group(colors: list[int | None]) -> None:
    """Neither is it with a negative one."""
    color = colors[unisono.get_rank()]
    group = split(color)
    assert bool(group) is (color is not None and color >= 0)
    assert not group or members_by_call(group) == [rank for rank in range(4) if colors[rank] == color]


@pytest.mark.ranks(5)
def test_new_group_sorts_its_ranks() -> None:
    """As in torch, whatever the order of the list, which may be any iterable."""
    for ranks in ([4, 0, 3], {3, 0, 4}, iter((0, 4, 3)), None, [2]):
        members = [2] if ranks == [2] else range(5) if ranks is None else [0, 3, 4]
        group = new_group(ranks)
        assert bool(group) is (unisono.get_rank() in members)
        assert not group or members_by_call(group) == [*members]


@pytest.mark.ranks(7)
def test_groups_of_groups() -> None:
    """Ranks are those of the parent, which may itself be a sub-group in an order of its own."""
    world = unisono.init()
    backwards = split(0, -world.rank)
    halves = split(backwards.rank // 4, group=backwards)
    destroy_group(backwards)  # what was made of it does not need it
    ends = new_group([0, halves.size - 1], group=halves)
    assert (halves.parent, halves.world, backwards.parent, world.parent) == (backwards, world, world, None)
    half = [6, 5, 4, 3] if world.rank > 2 else [2, 1, 0]
    assert members_by_call(halves) == half
    assert bool(ends) is (world.rank in (half[0], half[-1]))
    assert not ends or members_by_call(ends) == [half[0], half[-1]]


@pytest.mark.ranks(2)
def test_same_name_in_two_parents() -> None:
    """Threads may make groups of two parents in any order: here each rank in another one."""
    rank, parents = unisono.get_rank(), [new_group(), new_group()]
    order = parents if rank == 0 else parents[::-1]
    lender, both = parents[0].engine.lender, (0, 1)
    keys = {parent: lender.key("same", both, parent.gid) for parent in order}
    lent = {parent: lender.memory(key, both, rank, both) for parent, key in keys.items()}  # the first member lends
    unisono.barrier()
    found = [lender.memory(keys[parent], both, rank, both) if rank else lent[parent] for parent in parents]
    told = [None, None]
    unisono.all_gather_object(told, [memory.start for memory in found])
    assert told[0] == told[1]


@pytest.mark.ranks(5)
def test_ranks_have_two_numbers() -> None:
    group = split(unisono.get_rank() % 2, -unisono.get_rank())
    members = [3, 1] if unisono.get_rank() % 2 else [4, 2, 0]
    assert [get_global_rank(group, rank) for rank in range(len(members))] == members
    assert [get_group_rank(group, rank) for rank in members] == list(range(len(members)))
    assert get_process_group_ranks() == [0, 1, 2, 3, 4]
    assert get_global_rank(unisono.init(), 3) == get_group_rank(unisono.init(), 3) == 3
    assert unisono.get_rank(group) == members.index(unisono.get_rank())
    assert unisono.get_world_size(group) == len(members)
    for rank in (-1, len(members)):
        with pytest.raises(ArgumentError, match="group_rank"):
            get_global_rank(group, rank)
    for of_group in (get_global_rank, get_group_rank):
        with pytest.raises(DTypeError, match="_rank: got bool, expected a rank"):
            of_group(group, True)
    with pytest.raises(ArgumentError, match=r"expected a member of group .*, one of \["):
        get_group_rank(group, 1 - unisono.get_rank() % 2)


@pytest.mark.ranks(7)
def test_groups_have_names_and_times() -> None:
    world = unisono.init()
    world.timeout_s = 50.0
    pair = new_group([1, 2], name="pair", timeout_s=7.0)
    groups = [new_group([0, 2]), new_group(range(7)), pair, new_group([2], timeout_s=3.0)]
    if isinstance(pair, unisono.Group):
        groups.append(new_group(group=pair))
    world.timeout_s = 60.0
    assert all(group.name in repr(group) for group in groups)
    assert world.rank != 2 or [(group.name, group.timeout_s) for group in groups] == [
        ("ranks 0, 2", 50.0), ("ranks 0, 1, 2, 3, 4, 5 and 1 more", 50.0), ("pair", 7.0), ("rank 2", 3.0),
        ("ranks 1, 2", 7.0),
    ]  # fmt: skip


@contextmanager
def limit(module: str, name: str, value: int) -> Iterator[None]:
    """Another limit, in a rank that tests share."""
    home: Any = import_module(module)
    usual = getattr(home, name)
    setattr(home, name, value)
    try:
        yield
    finally:
        setattr(home, name, usual)


def gathers(group: unisono.Group, count: int, algorithm: Any) -> None:
    table = torch.empty(group.size * count)
    unisono.all_gather_single(table, torch.arange(count) + group.rank * 1000.0, group, algorithm=algorithm)
    assert table.tolist() == [rank * 1000.0 + k for rank in range(group.size) for k in range(count)]


@pytest.mark.ranks(2)
def test_equal_tables_share_a_program() -> None:
    """Tables that are made for one call each have programs of their own; equal tables have one."""
    group = unisono.new_group()

    def ring(name: str) -> Any:
        def mine(r: Any, ranks: int) -> Any:
            yield from all_gather.ring(r, ranks)

        mine.__name__ = name
        return mine

    with limit("unisono.engine.rank", "_MOST_PROGRAMS", 4):
        for k in range(12):
            gathers(group, 10 + k, ring(f"ring_{k}"))
            gathers(group, 10 + k, None)
            assert len(group.engine._programs) <= 4
    programs = [*map(id, group.engine._programs.values())]
    gathers(group, 10, ring("ring_11"))
    assert [*map(id, group.engine._programs.values())] == programs


def test_groups_that_a_host_has_forgotten() -> None:
    memory: Any = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None, read=lambda *_: b"")
    told: list[object] = []
    known = board_replicas.Copies(0, [0, 1], memory, lambda *_: None, lambda _, words: told.append(words))
    for gid in range(board_replicas._MOST_KEPT + 100):
        known.register(0, gid, 4096, (0, 1))
        known.forget(0, gid)
    assert len(told) == board_replicas._MOST_KEPT + 100
    assert len(known._forgotten) == board_replicas._MOST_KEPT
    assert board_replicas._MOST_KEPT + 99 in known._forgotten


def every_call(group: unisono.Group) -> list[Callable[[], object]]:
    t, wide = torch.ones(2), torch.ones(4)
    return [
        lambda: unisono.all_reduce(t, group=group),
        lambda: unisono.all_reduce(t, group=group, async_op=True),
        lambda: unisono.reduce(t, 0, group=group),
        lambda: unisono.broadcast(t, 0, group),
        lambda: unisono.scatter(t, None, 0, group),
        lambda: unisono.gather(t, None, 0, group),
        lambda: unisono.all_gather([t, t], t, group),
        lambda: unisono.all_gather_single(wide, t, group),
        lambda: unisono.reduce_scatter(t, [t, t], group=group),
        lambda: unisono.reduce_scatter_single(t, wide, group=group),
        lambda: unisono.all_to_all([t, t], [t, t], group=group),
        lambda: unisono.all_to_all_single(wide, wide, group=group),
        lambda: unisono.barrier(group),
        lambda: unisono.empty(3, group=group),
        lambda: unisono.share_(t, group=group),
        lambda: new_group(group=group),
        lambda: split(0, group=group),
        lambda: group.timeout_s,
    ]


@pytest.mark.ranks(3)
def test_calls_of_a_group_on_a_rank_outside_raise() -> None:
    group = new_group([0, 2], name="pair")
    nothing = split(None)
    if unisono.get_rank() == 1:
        for call in every_call(group):
            with pytest.raises(ArgumentError, match=r"rank 1 is not in group 'pair'.*`if group:`"):
                call()
        with pytest.raises(ArgumentError, match="rank 1 is not in group"):
            unisono.barrier(nothing)
    unisono.barrier()


def test_missing_attribute_of_a_nonmember() -> None:
    """Tools ask by `hasattr`, and by `getattr` with a default, which let only an AttributeError pass."""
    group = NonMember("pair", 1, (0, 2))
    assert not hasattr(group, "rank")
    assert getattr(group, "anything", "default") == "default"


@pytest.mark.ranks(3)
def test_nonmember_knows_its_group() -> None:
    group = new_group([0, 2])
    assert bool(group) is (unisono.get_rank() != 1)
    assert get_process_group_ranks(group) == [0, 2]
    assert get_group_rank(group, 2) == 1
    if isinstance(group, NonMember):
        assert (unisono.get_rank(group), unisono.get_world_size(group)) == (-1, -1)
        assert repr(group) == "NonMember('ranks 0, 2', rank 1 of the world)"
        for same in (copy.copy(group), copy.deepcopy(group)):
            assert (same.name, same.world_ranks, bool(same)) == (group.name, (0, 2), False)
        group.close()
    destroy_group(group)
    assert not split(-1)
    assert get_process_group_ranks(split(None)) == []
