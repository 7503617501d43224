"""Calls over hosts that are refused, wait, end or fork: relays can go on, and groups leave nothing behind."""

import gc
import os
import weakref
from contextlib import suppress
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.in_process_carrier import InProcessCarrier, Wires
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.calls.dispatch.over_hosts.hosts_run import RefusedCalls
from unisono.engine.compile.program import DONE, WAITING
from unisono.engine.memory import arena
from unisono.schedule import Hosts

LONG = 300_000
"""Elements of float64: such a tensor is sent from where it is."""


@in_new_world(2, hosts="2x1")
def test_refused_calls_end_the_group_in_time() -> None:
    """The rank whose memory is full first says so, and the other one hears it."""
    words = r"[2-8] calls over hosts that ended with a MismatchError hold .* free on this host(.|\n)*Let all ranks make"
    unisono.all_reduce(torch.ones(LONG))

    def differ() -> None:
        for _ in range(20):
            with suppress(unisono.MismatchError):
                unisono.all_reduce(torch.ones(LONG, dtype=torch.float64), "sum" if unisono.get_rank() else "max")

    with patch.object(arena, "_available_bytes", lambda: 8 * 8 * LONG):
        with pytest.raises((unisono.OutOfMemory, unisono.PeerFailed), match=words) as ended:
            differ()
        with pytest.raises(ended.type):
            unisono.all_reduce(torch.ones(LONG))


def test_tensor_of_refused_calls_counts_once() -> None:
    refused, tensor = RefusedCalls(), torch.ones(100)
    for sent in ([tensor], [tensor[1:], torch.ones(3)]):
        refused.add(10)
        refused.keep(one.untyped_storage() for one in sent)
    assert refused._nbytes == 10 + 10 + tensor.nbytes + 12


def test_memory_ends_with_its_carrier() -> None:
    carriers = [InProcessCarrier(Wires(Random(1)), rank) for rank in range(2)]
    refused = [weakref.ref(RefusedCalls.of(carrier)) for carrier in carriers]
    assert refused[0]() is RefusedCalls.of(carriers[0]) is not RefusedCalls.of(carriers[1])
    carriers.pop()
    gc.collect()
    assert refused[0]() is not None
    assert refused[1]() is None


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("shape", "late"), [("2x1", 1), ("2x2", 1), ("2x2", 2)])
def test_a_call_that_waits_comes_back_and_goes_on(shape: str, late: int, tmp_path: Path) -> None:
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


@in_new_world(2, hosts="2x1", timeout_s=90, gives=[7, 7])
def test_forked_child_collects_what_is_used() -> int:
    use(unisono.init())
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
