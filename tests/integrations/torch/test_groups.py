"""Groups of torch.distributed: sub-groups, the end and a new beginning, barriers that name missing ranks.

What torch does not let a backend written in Python do, as docs/torch.md says: a torch that does will fail here.

Sub-groups are in shared memory: many threads make them at once, and more than a table holds.
"""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_world
from tests.support.torch_ranks import TorchRanks


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


@pytest.mark.long
@pytest.mark.ranks(2, backend="unisono")
def test_many_sub_groups_leave_nothing_behind() -> None:
    world = dist.distributed_c10d._world

    def state() -> dict[str, int]:
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "maps": Path("/proc/self/maps").read_text().count("\n"),
            "pages": int(Path("/proc/self/statm").read_text().split()[1]),
            "threads": len(os.listdir("/proc/self/task")),
            "keys": dist.distributed_c10d._get_default_store().num_keys(),
            "groups": sum(map(len, (world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_to_tag))),
        }

    def make(count: int) -> None:
        for k in range(count):
            group = dist.new_group()
            tensor = torch.full((3,), k + dist.get_rank())
            dist.all_reduce(tensor, group=group)
            dist.all_reduce(tensor, group=group, async_op=True).wait()
            assert tensor[0].item() == 4 * k + 2
            dist.destroy_process_group(group)
        dist.barrier()

    make(20)
    before = state()
    make(1000)
    more = {what: count - before[what] for what, count in state().items()}
    assert more["descriptors"] <= 1, more  # a rank that waits long opens one of its peer, once
    assert more["maps"] <= 20, more  # of threads that have come and gone
    assert more["pages"] <= 2000, more  # 8 KiB per group
    assert more["threads"] <= 2, more  # that come and go
    assert more["keys"] <= 2, more  # of the last group: who has read it deletes them
    assert more["groups"] == 0, more


def test_ours_is_for_the_cpu_only(ranks: TorchRanks) -> None:
    def work() -> None:
        raise AssertionError("there should be no group")

    with pytest.raises(unisono.RankFailed, match=r"cuda:unisono|cuda.*unisono"):
        ranks(2, "cpu:gloo,cuda:unisono")(work)


@in_world(2)
def test_groups_are_made_and_destroyed_in_turns(tmp_path: Path) -> None:
    from unisono.integrations.torch import register

    register()
    me = unisono.get_rank()
    for turn in range(5):
        # One file for all turns: what the last one wrote is still there.
        store = dist.FileStore(str(tmp_path / "store"), 2)
        dist.init_process_group("unisono", store=store, rank=me, world_size=2)
        tensor = torch.tensor([float(me + turn)])
        dist.all_reduce(tensor)
        assert tensor.item() == 1 + 2 * turn
        dist.destroy_process_group()
        assert not dist.is_initialized()


@pytest.mark.ranks(1, backend="unisono")
def test_group_has_its_options() -> None:
    group: Any = dist.new_group(timeout=timedelta(seconds=7))
    assert group.options._timeout == timedelta(seconds=7)
    assert group._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=7)
    for timeout in (timedelta(seconds=8), timedelta(milliseconds=500), timedelta(days=1)):
        group.set_timeout(timeout)
        assert group.options._timeout == timeout


@pytest.mark.ranks(3, backend="unisono")
def test_threads_make_groups_in_any_order() -> None:
    from unisono.integrations.torch.join_group import whole_world
    from unisono.ranks.group.sub_groups import make_sub_group

    world, me = whole_world(), dist.get_rank()
    assert world is not None
    names = [f"group {k}" for k in range(12)]
    random.Random(me).shuffle(names)
    members = {name: [0, 1, 2] if int(name[6:]) % 3 else [2, 1] for name in names}

    def make(name: str) -> tuple[str, Any]:
        if me not in members[name]:
            return name, None
        return name, make_sub_group(world, members[name].index(me), members[name], name, 60.0)

    with ThreadPoolExecutor(12) as pool:
        made = dict(pool.map(make, names))
    for k in range(12):
        group = made[f"group {k}"]
        if group is not None:
            tensor = torch.tensor([10.0**me + k])
            unisono.all_reduce(tensor, group=group)
            assert tensor.item() == sum(10.0**r + k for r in members[f"group {k}"])


@pytest.mark.ranks(3, backend="unisono")
def test_names_that_come_again_are_other_groups() -> None:
    for k in range(20):
        group = dist.new_group([0, 2], use_local_synchronization=True)
        if dist.get_rank() != 1:
            tensor = torch.tensor([k + 10.0 ** dist.get_rank()])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 2 * k + 101.0
            dist.destroy_process_group(group)


@pytest.mark.ranks(3, backend="unisono")
def test_full_heaps_raise_on_all_members() -> None:
    from unisono.integrations.torch.join_group import whole_world

    world, is_member = whole_world(), dist.get_rank() > 0
    assert world is not None
    full = patch.object(world.engine.heap, "lend", side_effect=unisono.OutOfMemory("there is no room"))
    with full, pytest.raises(unisono.OutOfMemory, match="too full") if is_member else nullcontext():
        dist.new_group([1, 2])
    dist.barrier()


@pytest.mark.ranks(3, backend="unisono")
def test_late_first_member_is_named() -> None:
    from unisono.integrations.torch.join_group import whole_world
    from unisono.ranks.group.sub_groups import make_sub_group

    world = whole_world()
    assert world is not None
    if dist.get_rank() == 2:
        with pytest.raises(unisono.WaitTimeout, match=r"rank 1 .* in making the process group 'x' for rank 0") as late:
            make_sub_group(world, 1, [1, 2], "x", 0.1)
        assert late.value.missing == (0,)
    dist.barrier()


limits = pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the limits are those of torch 2.13")


@limits
@pytest.mark.ranks(2, backend="unisono")
def test_groups_are_made_not_split_or_shrunk() -> None:
    with pytest.raises(RuntimeError, match="not safe to split"):
        dist.split_group(None, [[0, 1]])
    dist.barrier()


def test_missing_rank_is_reported_early(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from unisono.integrations.torch.join_group import join

    monkeypatch.setenv("UNISONO_STALL_WARNING_S", "0.1")
    with pytest.raises(unisono.WaitTimeout):
        join(dist.PrefixStore("late", dist.HashStore()), 0, 3, "default", 0.5)
    said = capfd.readouterr().err
    assert said.count("unisono: rank 0 of 3 has waited") == 1
    assert "for ranks 1, 2 to come" in said
