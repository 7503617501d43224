"""Calls over hosts that are refused, wait, end or fork: relays can go on, and groups leave nothing behind."""

import gc
import os
from pathlib import Path

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.engine.compile.program import DONE, WAITING
from unisono.schedule import Hosts


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("shape", "late"), [("2x1", 1), ("2x2", 1), ("2x2", 2)])
def test_call_that_waits_comes_back_and_goes_on(shape: str, late: int, tmp_path: Path) -> None:
    came_back = tmp_path / "came back"

    def work() -> tuple[set[int], float]:
        group, tensor, seen = unisono.init(), torch.ones(3), set()
        unisono.all_reduce(tensor)
        if group.rank == 0:
            ((plan,), place) = group.plans.values(), tensor.data_ptr()
            while (outcome := group.run(plan.address, place, place, group.state)) != DONE:
                seen.add(outcome)
                came_back.touch()
        else:
            until(lambda: group.rank != late or came_back.exists())
            unisono.all_reduce(tensor)
        return seen, tensor[1].item()

    ranks = Hosts.parse(shape).ranks
    results = unisono.run(work, ranks, hosts=shape, timeout_s=60)
    assert [total for _, total in results] == [ranks**2] * ranks
    assert WAITING | late << 8 in results[0][0]
    assert all(outcome & 0xFF == WAITING for outcome in results[0][0])


def use(group: unisono.Group) -> None:
    tensor = torch.ones(1000)
    unisono.all_reduce(tensor, group=group)
    unisono.all_reduce_coalesced([tensor, torch.ones(3)], group=group)
    assert tensor[7].item() == group.size**2


@in_new_world(2, hosts="2x1", timeout_s=90, gives=[7, 7])
def test_forked_child_collects_what_was_dropped() -> int:
    group = unisono.init()
    use(group)
    engine = group.span.carrier
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
