"""Ranks that die, leave, come late or are interrupted: every other rank hears the same, soon, and the group is over."""

import os
import signal
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import unisono
from tests.support.on_ranks import FAILED, all_pids, die, in_new_world
from tests.support.waiting import until
from unisono import PeerGone, WaitTimeout
from unisono.base.config import Config


@in_new_world(2, gives=[6.0, 6.0])
def test_own_stop_does_not_count_as_waiting(tmp_path: Path) -> float:
    looked_twice = tmp_path / "looked"
    group, tensor = unisono.init(), torch.ones(3)
    if group.rank == 0:
        real, calls = time.monotonic, [0]

        def jumping() -> float:
            """A clock that jumps an hour ahead at each look."""
            calls[0] += 1
            if calls[0] > 4:
                looked_twice.touch()
            return real() + 3600 * calls[0]

        import_module("unisono.ranks.failures.attend").time = SimpleNamespace(monotonic=jumping)  # type: ignore[attr-defined]
    else:
        until(looked_twice.exists)
    unisono.all_reduce(tensor)
    return tensor.sum().item()


@pytest.mark.parametrize("config", [Config(look_up_s=1e-6), Config(look_up_s=2.0)], ids=["often", "rarely"])
@in_new_world(2, config="config")
def test_time_between_two_looks_was_waited(tmp_path: Path, config: Config) -> None:
    """All of it. The peer comes only after the wait has ended."""
    over = tmp_path / "over"
    if unisono.get_rank() == 1:
        until(over.exists, most_s=20)
        return
    with pytest.raises(WaitTimeout) as caught:
        unisono.barrier(timeout_s=0.9)
    assert caught.value.waited_s > 0.9 * max(0.99, config.look_up_s)
    over.touch()


@in_new_world(3, return_exceptions=True, gives=["told", FAILED, "told"])
def test_calls_queued_behind_a_failure_do_not_run() -> str:
    group = unisono.init()
    tensors = [torch.full((20_000 * k,), 1.0) for k in (1, 2, 3)]
    for tensor in tensors:
        unisono.all_reduce(tensor, algorithm="ring")
        tensor.fill_(1.0)
    if group.rank == 1:
        die()
    until(lambda: "signal 9" in str(group.engine.arena.board(1).gone))
    works = [unisono.all_reduce(tensor, algorithm="ring", async_op=True) for tensor in tensors]
    said = set()
    for work in works:
        assert work is not None
        with pytest.raises(PeerGone, match=r"float32\[20000\]") as caught:
            work.wait()
        said.add(str(caught.value))
    assert len(said) == 1, "each tells of the first failure"
    assert all((tensor == 1).all() for tensor in tensors)
    return "told"


@in_new_world(2)
def test_calls_of_all_kinds_leave_nothing_open() -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    group = unisono.init()

    def some() -> None:
        for k in range(20):
            tensor = torch.ones(60_000)
            for one in (tensor, tensor[:4], group.empty(60_000).fill_(1.0)):
                unisono.all_reduce(one)
            unisono.all_reduce(tensor, algorithm="ring")
            unisono.all_reduce(tensor, async_op=True).wait()
            unisono.broadcast(tensor, 0)
            unisono.barrier()
            with pytest.raises(unisono.MismatchError):
                unisono.all_reduce(torch.ones(3), "sum" if group.rank == k % 2 else "max")

    some()
    before = count(), os.stat(group.engine.arena.fd).st_blocks
    some()
    assert (count(), os.stat(group.engine.arena.fd).st_blocks) == before


@in_new_world(4, return_exceptions=True, gives=[1, FAILED, 1, 1])
def test_death_before_a_call_is_staged() -> int:
    """Tensors are shared on some ranks only, and rank 1 dies before it enters the call again, staged."""
    group = unisono.init()
    pids = all_pids()
    tensor = torch.ones(100_000)
    if group.rank == 2:
        until(lambda: group.engine.entered(1) == group.engine.call_number)
        os.kill(pids[1], signal.SIGKILL)
    else:
        tensor = group.empty(100_000)
    with pytest.raises(PeerGone) as caught:
        unisono.all_reduce(tensor)
    return caught.value.rank
