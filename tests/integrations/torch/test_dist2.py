"""torch.distributed._dist2, where groups are objects, and no process has a default one."""

import gc
import os
from datetime import timedelta
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_world
from tests.support.ports import free_port
from tests.support.programs import place
from tests.support.torch_ranks import answering
from unisono.integrations.torch import register

dist2: Any = pytest.importorskip("torch.distributed._dist2", reason="this torch has no _dist2")
LIMIT = timedelta(seconds=60)


@pytest.fixture
def port() -> int:
    return free_port()


def total(group: Any) -> float:
    tensor = torch.tensor([10.0 ** group.rank()])
    group.allreduce(tensor, timeout=LIMIT).wait()
    return tensor.item()


@pytest.mark.parametrize("backend", ["unisono", "gloo"])
@in_world(3)
def test_groups_are_objects(backend: str, port: int) -> None:
    register()
    with pytest.MonkeyPatch.context() as patch, answering():
        for name, value in place(unisono.get_rank(), 3, port).items():
            patch.setenv(name, str(value))
        before = len(os.listdir("/proc/self/fd"))
        group = dist2.new_group(backend, LIMIT, "cpu")
        assert (group.rank(), group.size()) == (unisono.get_rank(), 3)
        assert not torch.distributed.is_initialized()
        assert total(group) == 111.0
        with dist2.process_group(group):
            assert dist2.current_process_group() is group
        part = group.split_group([2, 0], group_name="part")
        assert (part is None) == (group.rank() == 1)
        assert part is None or total(part) == 11.0
        del group, part
        gc.collect()
        unisono.barrier()
        assert len(os.listdir("/proc/self/fd")) <= before + 4
    assert unisono.get_world_size() == 3


@in_world(1)
def test_dist2_is_for_the_cpu() -> None:
    register()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in place(0, 1, 0).items():
            patch.setenv(name, str(value))
        with pytest.raises(ValueError, match="device: got cuda:0, expected cpu"):
            dist2.new_group("unisono", LIMIT, "cuda:0")
        with pytest.raises(TypeError, match="threads"):
            dist2.new_group("unisono", LIMIT, "cpu", threads=3)
