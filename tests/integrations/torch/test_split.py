"""`split_group` and `merge_remote_group` of groups, and torch's function: as over Gloo of torch 2.15."""

import gc
import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_process_group

CPU = torch.device("cpu")
both_names = pytest.mark.parametrize("backend", ["unisono", "gloo"])


def total(group: Any) -> float:
    """The sum of 10 to the power of each member's rank."""
    tensor = torch.tensor([10.0 ** dist.get_rank()])
    group.allreduce([tensor]).wait()
    return tensor.item()


@both_names
@in_process_group(4, "backend", named=range(4))
def test_ranks_in_their_order(backend: str) -> None:
    me, world = dist.get_rank(), dist.group.WORLD
    for number in range(2):
        part: Any = world.split_group([3, 0, 1])
        if me == 2:
            assert part is None
            continue
        assert (part.rank(), part.size(), type(part)) == ([1, 2, -1, 0][me], 3, type(world))
        assert (part.group_name, part.group_desc) == ("0:split:[3, 0, 1]", f"default_pg:split:{number}")
        assert part._device_types == [CPU]
        assert part.options.global_ranks_in_group == [3, 0, 1]
        assert part.options._timeout == world.options._timeout
        assert total(part) == 1011.0
        pair: Any = part.split_group([1, 0], timedelta(seconds=7), group_name="pair", group_desc="of two")
        assert (pair is None) == (me == 1)
        if pair is not None:
            assert (pair.group_name, pair.group_desc, pair.rank()) == ("pair", "of two", [0, -1, -1, 1][me])
            assert pair.options._timeout == timedelta(seconds=7)
            assert total(pair) == 1001.0
            pair.shutdown()
    assert total(world) == 1111.0


@pytest.mark.skipif(torch.__version__ < (2, 15), reason="torch's function splits groups of the CPU from torch 2.15 on")
@pytest.mark.parametrize("device", [None, torch.device("cpu:0")])
@both_names
@in_process_group(3, "backend", named=range(3))
def test_torch_splits(backend: str, device: torch.device | None) -> None:
    me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    dist.destroy_process_group()
    where = {"store": dist.PrefixStore("again", store), "rank": me, "world_size": 3}
    dist.init_process_group(backend, **where, device_id=device)
    part: Any = dist.split_group(None, [[2, 0], [1]], group_desc="parts")
    assert dist.get_process_group_ranks(part) == ([1] if me == 1 else [2, 0])
    assert (part.group_desc, dist.get_backend(part), part.bound_device_id) == ("parts", backend, device)
    assert total(part) == (10.0 if me == 1 else 101.0)
    same = dist.split_group(part, [[0]], backend=backend)
    assert (same is dist.GroupMember.NON_GROUP_MEMBER) == (me == 0)
    dist.destroy_process_group(part)
    pair: Any = dist.new_group([0, 2])  # which torch does not split from a bound group of ours
    assert pair is dist.GroupMember.NON_GROUP_MEMBER or total(pair) == 101.0


@both_names
@in_process_group(4, "backend", named=range(4))
def test_groups_merge(backend: str) -> None:
    me, world = dist.get_rank(), dist.group.WORLD
    half: Any = world.split_group([0, 1] if me < 2 else [2, 3])
    total(world)
    before = len(os.listdir("/proc/self/fd"))
    store = dist.PrefixStore("merged", dist.distributed_c10d._get_default_store())
    merged: Any = half.merge_remote_group(store, 4)
    assert (merged.group_name, merged.group_desc) == (f"{half.group_name}:merge", f"{half.group_desc}:merge")
    assert (merged.size(), merged.options._timeout) == (4, timedelta(minutes=30))
    assert total(merged) == 1111.0
    said = torch.zeros(4)
    said[merged.rank()] = 1
    merged.allreduce([said]).wait()
    assert said.tolist() == [1] * 4
    assert total(half) == (11.0 if me < 2 else 1100.0)
    total(world)
    del merged
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # of the four processes, which this one knows now
    assert total(world) == 1111.0
    with pytest.raises(RuntimeError, match="4 ranks have used this store before"):
        half.merge_remote_group(store, 4)


@pytest.mark.parametrize("members", [[], [0, 0], [0, 2], [-1]])
@both_names
@in_process_group(2, "backend", named=range(2))
def test_invalid_members_are_refused(backend: str, members: list[int]) -> None:
    for kind in (RuntimeError, ValueError):
        with pytest.raises(kind, match="at least one of the 2 ranks, and each once"):
            dist.group.WORLD.split_group(members)
    assert total(dist.group.WORLD) == 11.0


@in_process_group(2, "cpu:unisono,cuda:gloo")
def test_groups_of_other_devices() -> None:
    world: Any = dist.group.WORLD
    with pytest.raises(unisono.ArgumentError, match="a group with backends for cuda"):
        world.split_group([0, 1])
    with pytest.raises(unisono.ArgumentError, match="Use new_group"):
        world.merge_remote_group(dist.HashStore(), 2)
    assert total(world.split_group([1, 0], device_types=[CPU])) == 11.0
