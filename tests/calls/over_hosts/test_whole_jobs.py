"""Whole jobs over several hosts: two at once, messages whose sender goes on, and waits that take little."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.fuzz.ranks import make_every_call
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.ranks.failures.attend import Watch


def every_call() -> None:
    """Calls whose messages are short, and long ones, which are kept for the second time."""
    group = unisono.init()
    for _ in range(2):
        make_every_call(group, (3, 5_000, 60_000))


def test_two_jobs_at_once() -> None:
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
    with patch.object(Watch, "look", autospec=True, side_effect=Watch.look) as look:
        before = time.process_time()
        if unisono.get_rank() == 1:
            time.sleep(wait_s)
        unisono.all_reduce(tensor)
        took_s = time.process_time() - before
    assert unisono.get_rank() or (took_s < 0.06 * wait_s and 0 < look.call_count < 60)
