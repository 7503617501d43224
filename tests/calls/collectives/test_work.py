"""Asynchronous calls: what a Work tells, and that nothing waits for one that is forgotten."""

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_world


@pytest.mark.ranks(2)
def test_a_work_tells_how_far_its_call_is() -> None:
    me = unisono.get_rank()
    tensor = torch.ones(5)
    if me == 0:
        pending = unisono.all_reduce(tensor, async_op=True)
        assert not pending.is_completed()
        assert not pending.is_success()
        assert not pending.get_future().done()
        with pytest.raises(unisono.WaitTimeout, match="goes on in the background"):
            pending.wait(0.02)
        flag = torch.zeros(1)
        unisono.p2p.send(flag, 1)
    else:
        unisono.p2p.recv(torch.zeros(1), 0)
        pending = unisono.all_reduce(tensor, async_op=True)
    assert pending.wait()
    assert pending.is_completed()
    assert pending.is_success()
    assert pending.exception() is None
    assert pending.result() is tensor
    assert pending.get_future().wait() is tensor
    assert tensor.tolist() == [2.0] * 5


@pytest.mark.ranks(2)
def test_later_calls_go_on_after_a_future_that_the_program_has_completed() -> None:
    if unisono.get_rank() == 0:
        pending = unisono.all_reduce(torch.ones(3), async_op=True)
        pending.get_future().set_result(None)
        unisono.send(torch.zeros(1), 1)
    else:
        unisono.recv(torch.zeros(1), 0)
        pending = unisono.all_reduce(torch.ones(3), async_op=True)
    pending.wait()
    later = torch.ones(3)
    unisono.all_reduce(later, async_op=True).wait(10)
    assert later.tolist() == [2.0] * 3


@pytest.mark.ranks(3)
def test_a_wait_that_runs_out_of_time_names_who_is_missing() -> None:
    group = unisono.new_group([0, 2])
    if not group:
        unisono.barrier()
        return
    tensor = torch.ones(70_000)
    if group.rank == 0:
        queued = [unisono.all_reduce(tensor, group=group, async_op=True) for _ in range(2)]
        for pending in reversed(queued):  # also a call that waits for one before it
            late = unisono.WaitTimeout("", 0.0, ())
            while not late.missing:  # it has not looked yet
                with pytest.raises(unisono.WaitTimeout, match="goes on in the background") as caught:
                    pending.wait(0.1)
                late = caught.value
            assert (late.missing, late.waiting, late.world_ranks) == ((1,), 0, (0, 2))
            assert "rank 0 (world rank 0) waited 0.1 s in all_reduce" in str(late)
            assert "for rank 1 (world rank 2)" in str(late)
        unisono.barrier()
    else:
        unisono.barrier()
        queued = [unisono.all_reduce(tensor, group=group, async_op=True) for _ in range(2)]
    assert all(pending.wait() for pending in queued)
    assert tensor[0].item() == 4.0


@pytest.mark.ranks(3)
def test_a_forgotten_work_is_done_all_the_same_and_keeps_nothing() -> None:
    tensor, other = torch.ones(70_000), torch.ones(70_000)
    threads = threading.active_count()
    for _ in range(50):
        unisono.all_reduce(other, "max", async_op=True)
    unisono.all_reduce(tensor, async_op=True)
    total = torch.ones(1)
    unisono.all_reduce(total)  # comes after all of them
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert threading.active_count() <= threads + 1
    assert (tensor[69_999].item(), gone()) == (3.0, None)


@pytest.mark.parametrize("size", [2, 3])
@in_world("size")
def test_what_a_callback_calls_comes_before_the_calls_that_wait(size: int) -> None:
    me = unisono.get_rank()
    first, inner, outer, last = (torch.full((count,), 1.0 + me) for count in (2, 3, 4, 5))
    release = torch.zeros(1)

    def callback(_: Any) -> None:
        pending = unisono.all_reduce(inner, async_op=True)
        pending.wait()

    if me:
        unisono.recv(release, 0)
    pending = unisono.all_reduce(first, async_op=True)
    if me:
        pending.wait()  # the callback runs at once, on this thread; on rank 0 later, on the worker's
    called: Any = pending.get_future().then(callback)
    unisono.all_reduce(outer, async_op=True)
    if not me:
        for peer in range(1, size):
            unisono.send(release, peer)
    unisono.all_reduce(last)  # after all of them, although nobody has waited for the callback
    called.wait()
    assert {*inner.tolist(), *outer.tolist(), *last.tolist()} == {size * (size + 1) / 2}
