"""Collectives over several hosts: order, bits, groups, calls that are made again, or in two jobs."""

import contextlib
import gc
import io
import os
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import unisono
from tests.fuzz.ranks import make_every_call
from tests.support.on_ranks import in_new_world, values
from tests.support.waiting import until


@pytest.mark.sampled(most=1)
@pytest.mark.ranks(hosts=["2x2:round_robin", "3+1"])
def test_values_are_combined_in_rank_order() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    big = torch.full((3,), 2**62, dtype=torch.int64) + me * size
    unisono.all_reduce(big, "avg")  # no partial sum fits into 64 bits
    assert big.tolist() == [2**62 + size * (size - 1) // 2] * 3
    tensor = values(100, me, torch.int64)
    unisono.all_reduce(tensor, unisono.make_op(lambda x, _: x, commutative=False))
    assert torch.equal(tensor, values(100, 0, torch.int64))


@pytest.mark.ranks(hosts=["2x2", "3+1"])
def test_repeated_sums_have_the_same_bits() -> None:
    """On all ranks, whoever comes first: their order is fixed."""
    torch.manual_seed(unisono.get_rank())
    vector = torch.randn(20_011)
    sums = [vector.clone() for _ in range(4)]
    for number, each in enumerate(sums):
        if unisono.get_rank() == number:
            time.sleep(0.01)
        unisono.all_reduce(each)
    everywhere = [torch.empty(20_011) for _ in range(unisono.get_world_size())]
    unisono.all_gather(everywhere, sums[0])
    assert all(torch.equal(sums[0], other) for other in (*sums, *everywhere))


@pytest.mark.ranks(hosts="2x2")
def test_later_calls_ignore_refused_ones() -> None:
    """A rank that has left a call skips steps for which ranks of its host may wait."""
    me = unisono.get_rank()
    for turn in range(12):
        total = torch.ones(5)
        for _ in range(turn % 3):
            unisono.all_reduce(total)
        assert total.tolist() == [4.0 ** (turn % 3)] * 5
        with pytest.raises(unisono.MismatchError):
            unisono.all_reduce(total, "max" if me == turn % 4 else "sum")


@in_new_world(2, config=unisono.Config(debug=1), hosts="2x1")
def test_each_call_over_hosts_has_its_debug_line() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as said:
        for _ in range(2):
            unisono.all_reduce(torch.ones(1000))
        unisono.broadcast(torch.ones(5, dtype=torch.float64), 1)
    lines = [line for line in said.getvalue().splitlines() if "of group" not in line]
    for line, call in zip(lines, ["all_reduce(float32[1000]"] * 2 + ["broadcast(float64[5]"], strict=True):
        assert line.startswith(f"[rank {unisono.get_rank()}] {call}")
        assert "over 2x1, staged, in place: " + ("40 B" if "broadcast" in call else "3.91 KiB") + " in " in line
        assert "takes about" in line.partition("; ")[2]


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("n", [1000, 300_000])
@pytest.mark.ranks(hosts=["2x1", "2x2"])
def test_memory_of_tensors_is_not_kept(n: int) -> None:
    seen = []
    for _ in range(4):
        array = np.ones(n)
        seen.append(weakref.ref(array))
        unisono.all_reduce(torch.from_numpy(array))
        del array
    assert [one() is None for one in seen] == [True] * 4


def test_two_jobs_at_once() -> None:
    """Their messages are short, or long ones, which are kept for the second time."""

    def every_call() -> None:
        for _ in range(2):
            make_every_call(unisono.init(), (3, 5_000, 60_000))

    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        jobs = [stack.enter_context(unisono.world(2, hosts="2x1", timeout_s=90)) for _ in range(2)]
        list(pool.map(lambda job: job.run(every_call), jobs))


@in_new_world(4, hosts="2x2", timeout_s=90, gives=[9.0, 0.0, 0.0, 0.0])
def test_message_arrives_whatever_its_sender_does(tmp_path: Path) -> float:
    """It makes no call, it waits in one for a rank of its host, or it ends."""
    group = unisono.init()
    me, long, got = group.rank, torch.full((70_000,), 3.0), 0.0
    gathered = [torch.empty(3) for _ in range(4)]
    for turn in ("no call", "a call", "the end"):
        if me == 3:
            unisono.send(long, 0)
        if me == 0:
            time.sleep(0.1)  # rank 3 has returned
            got += unisono.recv(src=3)[-1].item()
            (tmp_path / turn).touch()
        if turn == "no call":
            until((tmp_path / turn).exists)
        if turn == "a call":
            unisono.all_gather(gathered, torch.ones(3), timeout_s=20.0)
    return got


@pytest.mark.long
@in_new_world(2, hosts="2x1")
def test_wait_for_a_host_leaves_the_processor() -> None:
    tensor, wait_s = torch.ones(4), 4.0
    unisono.all_reduce(tensor)
    before = time.process_time()
    if unisono.get_rank() == 1:
        time.sleep(wait_s)
    unisono.all_reduce(tensor)
    assert time.process_time() - before < 0.06 * wait_s


@in_new_world(2, hosts="2x1", timeout_s=90, gives=[7, 7])
def test_forked_child_collects_what_was_dropped() -> int:
    group = unisono.init()
    tensor = torch.ones(1000)
    unisono.all_reduce(tensor)
    unisono.all_reduce_coalesced([tensor, torch.ones(3)])
    assert tensor[7].item() == 4
    engine = group.span.carrier
    group.cycle = [engine, group]  # type: ignore[attr-defined]  # as an error's traceback may make one
    unisono.barrier()
    unisono.shutdown()
    gc.disable()
    del group, engine
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
