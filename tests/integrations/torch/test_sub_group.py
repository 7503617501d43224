"""Sub-groups are made in shared memory: by many threads at once, more than a table holds; what goes wrong is told."""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.torch_ranks import TorchRanks
from unisono.engine.memory.arena import ENTRIES


def test_by_several_threads_in_any_order(ranks: TorchRanks) -> None:
    def work() -> None:
        from unisono.integrations.torch import join_group
        from unisono.ranks.group.sub_groups import make_sub_group

        world, me = join_group._world, dist.get_rank()
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

    ranks(3)(work)


def test_more_groups_than_a_table_has_entries(ranks: TorchRanks) -> None:
    def work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(gc, "get_freeze_count")  # it looks at all that a rank has frozen: 50 ms
            groups = [dist.new_group([0, 1]) for _ in range(ENTRIES + 20)]
        for k, group in enumerate(groups):
            tensor = torch.tensor([k + 1000.0 * dist.get_rank()])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 2 * k + 1000.0

    ranks(2)(work)


def test_names_that_come_again_are_other_groups(ranks: TorchRanks) -> None:
    def work() -> None:
        for k in range(20):
            group = dist.new_group([0, 2], use_local_synchronization=True)
            if dist.get_rank() != 1:
                tensor = torch.tensor([k + 10.0 ** dist.get_rank()])
                dist.all_reduce(tensor, group=group)
                assert tensor.item() == 2 * k + 101.0
                dist.destroy_process_group(group)

    ranks(3)(work)


def test_without_room_on_the_first_member_all_hear_it(ranks: TorchRanks) -> None:
    def work() -> None:
        from unisono.integrations.torch import join_group

        assert join_group._world is not None
        if dist.get_rank() == 1:
            join_group._world.host.heap.lend = refuse  # type: ignore[method-assign]
        if dist.get_rank() == 0:
            dist.new_group([1, 2])
        else:
            with pytest.raises(unisono.OutOfMemory, match="no room"):
                dist.new_group([1, 2])
        dist.barrier()

    def refuse(*_: object) -> int:
        raise unisono.OutOfMemory("there is no room")

    ranks(3)(work)


def test_a_first_member_that_does_not_come_is_named(ranks: TorchRanks) -> None:
    def work() -> None:
        from unisono.integrations.torch import join_group
        from unisono.ranks.group.sub_groups import make_sub_group

        world = join_group._world
        assert world is not None
        if dist.get_rank() == 2:
            with pytest.raises(
                unisono.WaitTimeout, match=r"rank 1 .* in making the process group 'x' for rank 0"
            ) as late:
                make_sub_group(world, 1, [1, 2], "x", 0.1)
            assert late.value.missing == (0,)
        dist.barrier()

    ranks(3)(work)
