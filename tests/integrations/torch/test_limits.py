"""What torch does not let a backend written in Python do, as docs/torch.md says: a torch that does will fail here."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the limits are those of torch 2.13")


@pytest.mark.ranks(2, backend="unisono")
def test_groups_are_made_not_split_or_shrunk() -> None:
    with pytest.raises(RuntimeError, match="not safe to split"):
        dist.split_group(None, [[0, 1]])
    dist.barrier()


@pytest.mark.ranks(2, backend="unisono")
def test_a_timeout_is_set_by_the_group_itself() -> None:
    world = dist.group.WORLD
    with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=50), world)
    world.set_timeout(timedelta(seconds=50))
