"""Groups over several hosts leave nothing behind, and a forked child has nothing to do with their carriers."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
import torch

import unisono


def use(group: unisono.Group) -> None:
    tensor = torch.ones(1000)
    unisono.all_reduce(tensor, group=group)
    unisono.all_reduce_coalesced([tensor, torch.ones(3)], group=group)
    assert tensor[7].item() == group.size**2


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
@pytest.mark.ranks(hosts="2x2")
def test_a_group_goes_without_the_garbage_collector(closed: bool) -> None:
    gc.collect()
    gc.disable()
    group = unisono.new_group(range(unisono.get_world_size()))
    use(group)
    here = weakref.ref(group)
    if closed:
        group.close()
    unisono.barrier()
    del group
    gone = here() is None
    gc.enable()
    assert gone


def test_a_forked_child_may_collect_what_its_parent_has_used(carrier: str) -> None:
    def fork() -> int:
        use(unisono.init())
        assert unisono.init().span.carrier.name == carrier
        child = os.fork()
        if child == 0:
            with pytest.raises(unisono.NotInitialized):
                unisono.barrier()
            unisono.shutdown()
            gc.collect()
            os._exit(7)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        use(unisono.init())
        return code

    assert unisono.run(fork, 2, hosts="2x1", timeout_s=90) == [7, 7]


def test_a_forked_child_may_collect_what_its_parent_has_dropped(carrier: str) -> None:
    def fork() -> int:
        group = unisono.init()
        use(group)
        engine = group.span.carrier
        assert engine.name == carrier
        group.cycle = [engine, group]  # as an error's traceback may make one
        unisono.barrier()
        unisono.shutdown()
        gc.disable()
        del group, engine
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert unisono.run(fork, 2, hosts="2x1", timeout_s=90) == [7, 7]
