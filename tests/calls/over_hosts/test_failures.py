"""What ranks of several hosts say when one aborts, leaves or is cut off, or loses its sentinel; and how they go on."""

import os
import signal
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch

import unisono
from tests.support.fake_hosts import send_with_spare
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.base.config import Config
from unisono.engine.carrier import Lost
from unisono.engine.compile.program import DONE, LOST, StateWord
from unisono.hosts import far


@pytest.mark.ranks(hosts="2x2")
def test_abort_ends_sub_groups() -> None:
    world = unisono.init()
    middle = unisono.new_group([0, 1, 2])
    inner = unisono.new_group([0, 2], group=middle) if middle else None
    unisono.barrier()  # all have made it
    if world.rank == 1:
        middle.abort("enough")
    elif inner:
        with pytest.raises(unisono.PeerFailed, match="enough"):
            unisono.recv(src=1 - inner.rank, group=inner)
    unisono.barrier()  # the world goes on


@pytest.mark.ranks(hosts="2x1")
def test_interrupt_after_a_call_breaks_nothing() -> None:
    group, tensor = unisono.new_group(), torch.ones(10)
    for _ in range(3):
        unisono.all_reduce(tensor, group=group)
    run = group.run

    def late(*given: int) -> int:
        status = run(*given)
        if status == DONE:
            raise KeyboardInterrupt
        return status

    if group.rank == 0:
        group.run = late
        with pytest.raises(KeyboardInterrupt):
            unisono.all_reduce(tensor, group=group)
        group.run = run
    else:
        unisono.all_reduce(tensor, group=group)
    for _ in range(3):
        unisono.all_reduce(tensor, group=group)
    assert tensor[3].item() == 2.0**7


@pytest.mark.ranks(hosts="2x1")
def test_news_are_read_at_the_end_of_a_call() -> None:
    group, tensor, stops = unisono.new_group(), torch.ones(10), list[int]()
    unisono.all_reduce(tensor, group=group)
    ((plan,), run, before) = group.plans.values(), group.run, group.span.news.value

    def with_news(*given: int) -> int:
        if len(plan.kept[0]) not in stops:
            group.span.seen.value = group.span.news.value - 1
        status = run(*given)
        if status != DONE:
            stops.append(group.words[StateWord.PC])
        return status

    group.run = with_news
    unisono.all_reduce(tensor, group=group)
    assert len(plan.kept[0]) in stops
    assert group.span.seen.value >= before
    assert tensor[3].item() == 4.0


def until_it_fails() -> unisono.PeerError:
    tensor = torch.ones(10)
    while True:
        try:
            unisono.all_reduce(tensor.fill_(1.0))
        except unisono.PeerError as error:
            return error


@pytest.mark.long
@in_new_world(
    3, hosts="3x1", timeout_s=90, config=Config(look_up_s=4.0, host_silence_s=1.5), gives=[(1,), (0, 2), (1,)]
)
def test_calls_without_waits_tell_of_a_cut() -> tuple[int, ...]:
    """Messages of a host go on for a while where only its sentinel has been killed. A call that waits for less than
    four seconds does not look at its peers.
    """
    group: Any = unisono.init()
    unisono.barrier()
    if group.rank == 1:  # both processes of its sentinel die, which cannot be started again
        patch.object(far, "start_again", side_effect=OSError).start()
        send_with_spare(group.span.far, signal.SIGKILL)
    error = until_it_fails()
    assert isinstance(error, unisono.PeerGone)
    return error.failed


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


@in_new_world(2, hosts="1+1", timeout_s=60)
def test_next_sentinels_cost_no_descriptors() -> None:
    group, open_ones = unisono.init(), list[int]()
    sentinel = group.span.far
    until(lambda: sentinel.sentinel_pid > 0)
    for _ in range(3):
        before, changed = sentinel.sentinel_pid, torch.zeros(1)
        if group.rank == 0:
            os.kill(before, signal.SIGKILL)
        while not changed:
            changed.fill_(group.rank or sentinel.sentinel_pid not in (0, before))
            unisono.all_reduce(changed, "min")
        open_ones.append(len(os.listdir("/proc/self/fd")))
    assert open_ones[2] <= open_ones[0]
