"""Groups of torch.distributed: made, named, split, merged, as objects without a world, ended, and made again."""

import gc
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.programs import free_port, place
from tests.support.torch_ranks import answering, in_process_group, total
from unisono.integrations.torch import register
from unisono.integrations.torch.join_group import join, whole_world
from unisono.ranks.group.sub_groups import make_sub_group

CPU, LIMIT = torch.device("cpu"), timedelta(seconds=60)
both_names = pytest.mark.parametrize("backend", ["unisono", "gloo"])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.ranks(2, backend="unisono")
def test_barrier_with_meta_as_default_device() -> None:
    with torch.device("meta"):
        dist.monitored_barrier(timeout=timedelta(seconds=30))


@pytest.mark.ranks(3, backend="unisono")
def test_held_group_does_not_block_its_end() -> None:
    from unisono.integrations.torch import join_group

    held, join_group._FOLLOW_S = dist.group.WORLD, 3600.0  # as torch.distributed.nn and DTensor hold it
    try:
        dist.destroy_process_group()
    finally:
        join_group._FOLLOW_S = 1.0
    unisono.barrier()  # all have left, and rank 0 still holds it
    assert held is not None


@pytest.mark.ranks(2)
def test_groups_are_made_and_destroyed_in_turns(tmp_path: Path) -> None:
    register()
    for _ in range(5):
        # One file for all turns: what the last one wrote is still there.
        store = dist.FileStore(str(tmp_path / "store"), 2)
        dist.init_process_group("unisono", store=store, rank=unisono.get_rank(), world_size=2)
        assert total() == 11.0
        dist.destroy_process_group()
        assert not dist.is_initialized()


@pytest.mark.ranks(3, backend="unisono")
def test_threads_make_groups_in_any_order() -> None:
    world, me, names = whole_world(), dist.get_rank(), [*range(12)]
    assert world is not None
    random.Random(me).shuffle(names)

    def make(name: int) -> tuple[int, Any]:
        members = [0, 1, 2] if name % 3 else [2, 1]
        made = make_sub_group(world, members.index(me), members, f"group {name}", 60.0) if me in members else None
        return name, made

    with ThreadPoolExecutor(12) as pool:
        made = dict(pool.map(make, names))
    for name, group in sorted(made.items()):
        if group is not None:
            tensor = torch.tensor([10.0**me + name])
            unisono.all_reduce(tensor, group=group)
            assert tensor.item() == (111 + 3 * name if name % 3 else 110 + 2 * name)


@pytest.mark.ranks(3, backend="unisono")
def test_names_that_come_again_are_other_groups() -> None:
    for _ in range(20):
        group = dist.new_group([0, 2], use_local_synchronization=True)
        if dist.get_rank() != 1:
            assert total(group) == 101.0
            dist.destroy_process_group(group)


@pytest.mark.ranks(3, backend="unisono")
def test_late_first_member_is_named() -> None:
    if dist.get_rank() == 2:
        with pytest.raises(unisono.WaitTimeout, match=r"rank 1 .* in making the process group '1' for rank 0") as late:
            dist.new_group([1, 2], timeout=timedelta(seconds=0.1))
        assert late.value.missing == (0,)
    dist.barrier()


def test_missing_rank_is_reported_early(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("UNISONO_STALL_WARNING_S", "0.1")
    with pytest.raises(unisono.WaitTimeout):
        join(dist.PrefixStore("late", dist.HashStore()), 0, 3, "default", 0.5)
    assert "unisono: rank 0 of 3 has waited" in capfd.readouterr().err


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


@pytest.mark.skipif(torch.__version__ < "2.15", reason="torch's function splits groups of the CPU from torch 2.15 on")
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
    before = descriptors()
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
    assert descriptors() <= before + 3  # of the four processes, which this one knows now
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


@contextmanager
def launched(rank: int, size: int, port: int) -> Iterator[Any]:
    """torch.distributed._dist2, where groups are objects, and no process has a default one."""
    register()
    with patch.dict(os.environ, {name: str(value) for name, value in place(rank, size, port).items()}):
        yield import_module("torch.distributed._dist2")


has_objects = pytest.mark.skipif(find_spec("torch.distributed._dist2") is None, reason="this torch has no _dist2")


@pytest.fixture
def port() -> int:
    return free_port()


@has_objects
@both_names
@pytest.mark.ranks(3)
def test_groups_are_objects(backend: str, port: int) -> None:
    with launched(unisono.get_rank(), 3, port) as dist2, answering():
        before = descriptors()
        group = dist2.new_group(backend, LIMIT, "cpu")
        assert (group.rank(), group.size()) == (unisono.get_rank(), 3)
        assert not dist.is_initialized()
        assert total(group) == 111.0
        with dist2.process_group(group):
            assert dist2.current_process_group() is group
        part = group.split_group([2, 0], group_name="part")
        assert (part is None) == (group.rank() == 1)
        assert part is None or total(part) == 11.0
        del group, part
        gc.collect()
        unisono.barrier()
        assert descriptors() <= before + 4
    assert unisono.get_world_size() == 3


@has_objects
@pytest.mark.ranks(1)
def test_dist2_is_for_the_cpu() -> None:
    with launched(0, 1, 0) as dist2:
        with pytest.raises(ValueError, match="device: got cuda:0, expected cpu"):
            dist2.new_group("unisono", LIMIT, "cuda:0")
        with pytest.raises(TypeError, match="threads"):
            dist2.new_group("unisono", LIMIT, "cpu", threads=3)
