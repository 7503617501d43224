"""Whole jobs over several hosts: every call, deaths and aborts in long calls, messages whose sender goes on."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import unisono
from tests.fuzz.ranks import make_every_call
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.schedule import Hosts


def go_on(tensor: torch.Tensor) -> None:
    while True:
        unisono.all_reduce(tensor.fill_(1.0))


def every_call() -> None:
    """Calls whose messages are short, and long ones, which are kept for the second time."""
    group = unisono.init()
    for _ in range(2):
        make_every_call(group, (3, 5_000, 60_000))


@pytest.mark.parametrize("shape", ["2x1", "2x2", "3+1"])
def test_calls_and_messages(shape: str) -> None:
    ranks = Hosts.parse(shape).ranks
    unisono.run(every_call, ranks, hosts=shape, timeout_s=90)


def test_two_jobs_at_once() -> None:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        jobs = [stack.enter_context(unisono.world(2, hosts="2x1", timeout_s=90)) for _ in range(2)]
        list(pool.map(lambda job: job.run(every_call), jobs))


@pytest.mark.parametrize("nbytes", [40, 32 << 20])
def test_a_death_is_told_and_the_others_go_on(nbytes: int) -> None:
    """Also in the middle of long messages."""

    def lose() -> tuple[str, float]:
        group = unisono.init()
        tensor = torch.ones(nbytes // 4)
        for _ in range(3):
            unisono.all_reduce(tensor)
        if group.rank == 3:
            unisono.all_reduce(tensor)  # all have ended the calls before
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(unisono.PeerGone) as told:
            go_on(tensor)
        smaller = group.shrink()
        total = torch.full((nbytes // 4,), 10.0**group.rank)
        unisono.all_reduce(total, group=smaller)
        return str(told.value), total[-1].item()

    results = unisono.run(lose, 4, hosts="2x2", timeout_s=90, return_exceptions=True)
    for result in results[:3]:
        assert isinstance(result, tuple), result
        assert "rank 3 " in result[0]
        assert result[1] == 111.0


def test_an_abort_in_the_middle_of_long_calls(tmp_path: Path) -> None:
    def work() -> tuple[str, float]:
        group = unisono.init()
        tensor = torch.ones(4 << 20)
        unisono.all_reduce(tensor)
        (tmp_path / f"{group.rank}").touch()
        if group.rank == 1:
            until(lambda: len(list(tmp_path.iterdir())) == 4)  # all have made the first call
            group.abort("the disk is full")
        with pytest.raises(unisono.PeerFailed) as told:
            go_on(tensor)
        again = group.shrink()
        total = torch.full((4 << 20,), 10.0**group.rank)
        unisono.all_reduce(total, group=again)
        return str(told.value), total[7].item()

    for words, total in unisono.run(work, 4, hosts="2x2", timeout_s=90):
        assert "the disk is full" in words
        assert total == 1111.0


@in_new_world(4, hosts="2x2", timeout_s=90, gives=[9.0, 0.0, 0.0, 0.0])
def test_a_sent_message_arrives_whatever_its_rank_does_next(tmp_path: Path) -> float:
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


@in_new_world(2, hosts="2x1", timeout_s=90, gives=[16.0, 16.0])
def test_a_rank_that_is_stopped_is_waited_for(tmp_path: Path) -> float:
    group = unisono.init()
    tensor = torch.ones(1 << 20)
    (tmp_path / f"{group.rank}").write_text(str(os.getpid()))
    unisono.barrier()
    if group.rank == 0:
        other = int((tmp_path / "1").read_text())
        os.kill(other, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (other, signal.SIGCONT)).start()
    for _ in range(4):
        unisono.all_reduce(tensor)
    return tensor[-1].item()
