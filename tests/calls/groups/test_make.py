"""Groups: members, their order and numbers, ranks that are left out, and calls of several at once."""

import contextlib
import copy
import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature

import pytest
import torch

import unisono
from tests.calls.collectives.test_misuse import CALLS
from tests.fuzz.ranks import make_every_call
from tests.support.on_ranks import in_new_world
from unisono.base.errors import ArgumentError, DTypeError
from unisono.calls.groups import (
    destroy_group,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    new_group,
    split,
)
from unisono.ranks.group.current import NonMember


def members_by_call(group: unisono.Group) -> list[int]:
    """The members, as an all_gather finds them."""
    table = torch.full((group.size,), -1)
    unisono.all_gather_single(table, torch.tensor([unisono.get_rank()]), group)
    return table.tolist()


@pytest.mark.parametrize(
    ("colors", "keys", "groups"),
    [
        ([0, 1, 0, 1, 0], [0] * 5, [[0, 2, 4], [1, 3]]),
        ([0] * 5, [0, -1, 5, -(1 << 63), (1 << 63) - 1], [[3, 1, 0, 2, 4]]),
        ([0] * 5, [1, 0, 1, 0, 1], [[1, 3, 0, 2, 4]]),
        ([None, 7, -1, 7, None], [0] * 5, [[1, 3]]),
        ([-5, None, None, -2, -1], [0] * 5, []),
        ([3, 2, 1, 0, 3], [0, 0, 0, 0, -1], [[4, 0], [1], [2], [3]]),
    ],
)
@pytest.mark.ranks(5, hosts="3+2")
def test_colors_and_keys_make_groups(colors: list[int | None], keys: list[int], groups: list[list[int]]) -> None:
    """Without a color, or with a negative one, a rank is in no group."""
    me = unisono.get_rank()
    group, mine = split(colors[me], keys[me]), next((group for group in groups if me in group), None)
    assert bool(group) is (mine is not None)
    if mine:
        assert (group.rank, group.size) == (mine.index(me), len(mine))
        assert members_by_call(group) == get_process_group_ranks(group) == mine


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
    assert world.rank != 2 or [(group.name, group.timeout_s) for group in groups] == [
        ("ranks 0, 2", 50.0), ("ranks 0, 1, 2, 3, 4, 5 and 1 more", 50.0), ("pair", 7.0), ("rank 2", 3.0),
        ("ranks 1, 2", 7.0),
    ]  # fmt: skip


@pytest.mark.ranks(3)
def test_calls_of_a_group_on_a_rank_outside_raise() -> None:
    group = new_group([0, 2], name="pair")
    nothing = split(None)
    if unisono.get_rank() == 1:
        calls = [partial(getattr(unisono, name), *given()) for name, given in CALLS.items()]
        for call in (*calls, partial(unisono.empty, 3), partial(unisono.share_, torch.ones(2))):
            for how in ({}, {"async_op": True}):
                if signature(call).parameters.keys() >= {"group", *how}:
                    with pytest.raises(ArgumentError, match=r"rank 1 is not in group 'pair'.*`if group:`"):
                        call(group=group, **how)
        with pytest.raises(ArgumentError, match="rank 1 is not in group"):
            _ = group.timeout_s
        with pytest.raises(ArgumentError, match="rank 1 is not in group"):
            unisono.barrier(nothing)
    unisono.barrier()


@pytest.mark.ranks(3)
def test_nonmember_knows_its_group() -> None:
    group = new_group([0, 2])
    assert bool(group) is (unisono.get_rank() != 1)
    assert get_process_group_ranks(group) == [0, 2]
    assert get_group_rank(group, 2) == 1
    if isinstance(group, NonMember):
        assert (unisono.get_rank(group), unisono.get_world_size(group)) == (-1, -1)
        assert not hasattr(group, "rank"), "tools ask in this way"
        for same in (copy.copy(group), copy.deepcopy(group)):
            assert (same.name, same.world_ranks, bool(same)) == (group.name, (0, 2), False)
        group.close()
    destroy_group(group)
    assert not split(-1)
    assert get_process_group_ranks(split(None)) == []


@in_new_world(4, config=unisono.Config(debug=1, cross_memory_bytes=0))
def test_shared_tensors_are_never_staged() -> None:
    """Whatever group they were made for."""
    group = split(unisono.get_rank() % 2, -unisono.get_rank())
    tensors = [unisono.empty(50_000), group.empty(50_000), unisono.share_(torch.empty(50_000)), torch.empty(50_000)]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for tensor in tensors:
            unisono.all_reduce(tensor.fill_(group.rank + 1.0), group=group)
            assert tensor.unique().tolist() == [3.0]
    assert [", staged, " in line for line in said.getvalue().splitlines()] == [False, False, False, True]


@pytest.mark.ranks(4)
def test_two_groups_from_two_threads() -> None:
    """Their calls, and those that make groups of one name, come in another order on every rank."""
    rank = unisono.get_rank()
    groups = [new_group(), new_group()]

    def work(number: int) -> None:
        inner = new_group(group=groups[number], name="same")
        for seed in range(10):
            make_every_call(inner, (500,), 10 * seed + number)

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(work, (rank % 2, 1 - rank % 2))] == [None] * 2


@pytest.mark.ranks(3)
def test_one_group_from_two_threads() -> None:
    """Its calls run one after the other, so none is lost or torn."""
    group = new_group([0, 2])

    def work(calls: int) -> float:
        ones = [torch.ones(1) for _ in range(calls)]
        for one in ones:
            unisono.all_reduce(one, group=group)
        return torch.cat(ones).sum().item()

    if group:
        with ThreadPoolExecutor(2) as pool:
            assert sum(pool.map(work, (100, 100))) == 400.0
        assert work(1) == 2.0


@pytest.mark.parametrize("waits", range(3))
@pytest.mark.ranks(3)
def test_background_calls_end_before_a_run_does(waits: int) -> None:
    """Peers still need them, and must not hear that this rank has returned."""
    group = new_group()
    tensor = torch.full((200_000,), float(group.rank))
    work = unisono.all_reduce(tensor, group=group, async_op=True, algorithm="ring")
    if group.rank == waits:
        work.wait()
        assert tensor[-1].item() == 3.0
