"""What ranks say whose host has lost its sentinel for good, and what those of other hosts do."""

import os
import signal
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import unisono
from tests.calls.over_hosts.test_failures import until_it_fails
from tests.support.fake_hosts import kill_with_spare, sentinel_of
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.engine.carrier import Lost
from unisono.engine.compile.program import LOST


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("host", [0, 1])
@in_new_world(2, hosts="1+1", config=Config(host_silence_s=1.5))
def test_host_without_sentinel_is_left_out(host: int) -> None:
    """And nobody is told that others have gone on where they have not."""
    group = unisono.init()
    unisono.barrier()
    if group.rank == host:
        kill_with_spare(group.span.far)
    assert isinstance(until_it_fails(), unisono.PeerGone)
    if (group.rank, host) == (0, 1):
        assert group.shrink().world_ranks == (0,)
        return
    with pytest.raises(unisono.LeftOut) as left_out:
        group.shrink()
    said = f"{left_out.value.reason}. {left_out.value}"
    assert "have gone on without" not in said
    assert ("its sentinel (process" if group.rank == host else "is cut off from host") in said
    assert group.rank == host or "whose half of the hosts goes on, if it can" in said


@pytest.mark.long
@in_new_world(
    3, hosts="3x1", timeout_s=90, config=Config(look_up_s=4.0, host_silence_s=1.5), gives=[(1,), (0, 2), (1,)]
)
def test_calls_without_waits_tell_of_a_cut() -> tuple[int, ...]:
    """Messages of a host go on for a while where only its sentinel has been killed. A call that waits for less than
    four seconds does not look at its peers.
    """
    group = unisono.init()
    unisono.barrier()
    if group.rank == 1:
        kill_with_spare(group.span.far)
    error = until_it_fails()
    assert isinstance(error, unisono.PeerGone)
    return error.failed


@in_new_world(2, hosts="2x1")
def test_killed_sentinel_costs_a_wait_nothing(tmp_path: Path) -> None:
    group, tensor = unisono.init(), torch.ones(10)
    unisono.all_reduce(tensor)
    if group.rank == 0:
        until((tmp_path / "killed").exists, 20.0)
        time.sleep(0.3)
    else:
        before = sentinel_of(group.span.far)
        threading.Timer(0.2, lambda: (os.kill(before, signal.SIGKILL), (tmp_path / "killed").touch())).start()
    unisono.all_reduce(tensor)
    assert bool((tensor == 4.0).all())
    assert group.rank == 0 or sentinel_of(group.span.far) != before


@in_new_world(3, hosts="3x1", config=Config(host_silence_s=0.5), timeout_s=60)
def test_host_without_messages_is_left_out() -> None:
    """The one with the higher number; though sentinels hear both."""
    group, tensor = unisono.init(), torch.ones(10)
    unisono.barrier()

    def fail(*_: int) -> int:
        group.span.call = Mock(failure=Lost(2 - group.rank, "no route to host"))
        return LOST | 2 - group.rank << 8

    if group.rank != 1:
        group.run = fail
    error = until_it_fails()
    assert isinstance(error, unisono.PeerGone)
    if group.rank == 2:
        with pytest.raises(unisono.LeftOut):
            group.shrink()
        return
    assert error.failed == (2,)
    assert "which exchanges no messages with host" in str(error)
    smaller = group.shrink()
    assert smaller.world_ranks == (0, 1)
    unisono.all_reduce(tensor, group=smaller)
    assert bool((tensor == 2.0).all())
