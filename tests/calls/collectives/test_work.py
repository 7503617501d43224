"""Asynchronous calls: what a Work tells, and that nothing waits for one that is forgotten."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.calls.work import worker_of
from unisono.integrations.torch.to_torch import Together


@contextmanager
def first_on_rank_0() -> Iterator[None]:
    """Rank 0 does what is in this block before the others begin."""
    word = torch.zeros(1)
    if unisono.get_rank():
        unisono.recv(word, 0)
    yield
    for peer in range(1, unisono.get_world_size()) if not unisono.get_rank() else ():
        unisono.send(word, peer)


@pytest.mark.parametrize("count", [5, 3_000_000])
@pytest.mark.ranks(2, 3)
def test_work_tells_how_far_its_call_is(ranks: int, count: int) -> None:
    """Of a call that is planned, or known, or so long that another thread makes it from the start."""
    for _ in range(3):
        tensor, later = torch.ones(count), torch.ones(4)
        with first_on_rank_0():
            pending = unisono.all_reduce(tensor, async_op=True)
            if unisono.get_rank() == 0:
                assert not any((pending.is_completed(), pending.is_success(), pending.get_future().done()))
                with pytest.raises(unisono.WaitTimeout, match="goes on in the background"):
                    pending.wait(0.02)
        unisono.all_reduce(later)
        assert pending.is_completed()  # calls keep their order
        expect_ended(pending, tensor)
        assert {tensor[0].item(), tensor[-1].item(), *later.tolist()} == {ranks}


def expect_ended(pending: Any, tensor: torch.Tensor) -> None:
    assert pending.is_completed()
    assert pending.is_success()
    assert pending.exception() is None
    assert pending.wait(1.0)
    assert pending.result() is tensor
    assert pending.get_future().wait() is tensor


@pytest.mark.ranks(1)
def test_call_needing_no_peer_ends_at_once() -> None:
    tensor, called = torch.arange(5.0), list[Any]()
    unisono.all_reduce(tensor)
    unisono.barrier(async_op=True).wait()  # starts the worker
    pending: Any = unisono.all_reduce(tensor, async_op=True)
    expect_ended(pending, tensor)
    pending.get_future().then(called.append)
    assert len(called) == 1


@pytest.mark.ranks(2)
def test_completed_future_stops_no_later_call() -> None:
    with first_on_rank_0():
        pending = unisono.all_reduce(torch.ones(3), async_op=True)
        if unisono.get_rank() == 0:
            pending.get_future().set_result(None)
    pending.wait()
    later = torch.ones(3)
    unisono.all_reduce(later, async_op=True).wait(10)
    assert later.tolist() == [2.0] * 3


@pytest.mark.ranks(2)
def test_timeout_of_wait_names_who_is_missing() -> None:
    """Also of a call that waits for one before it."""
    tensor = torch.ones(70_000)
    with first_on_rank_0():
        queued: list[Any] = [unisono.all_reduce(tensor, async_op=True) for _ in range(2)]
        for pending in reversed(queued) if unisono.get_rank() == 0 else ():
            late = unisono.WaitTimeout("", 0.0, ())
            while not late.missing:  # it has not looked yet
                with pytest.raises(unisono.WaitTimeout, match="goes on in the background") as caught:
                    pending.wait(0.1)
                late = caught.value
            assert (late.missing, late.waiting) == ((1,), 0)
            assert "rank 0 waited 0.1 s in all_reduce" in str(late)
    assert all(pending.wait() for pending in queued)
    assert tensor[0].item() == 4.0


@pytest.mark.ranks(3)
def test_forgotten_work_ends_and_keeps_nothing() -> None:
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


WAYS: dict[str, Callable[[Any], Any]] = {
    "wait": lambda work: work.wait(20),
    "result": lambda work: work.result(20),
    "together": lambda work: Together([work]).wait(20),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.ranks(2)
def test_callback_cannot_wait_for_a_later_call(way: str) -> None:
    """The later call runs on the thread that would wait. The program can still wait for it."""
    with first_on_rank_0():
        first, tensor = unisono.all_reduce(torch.ones(3), async_op=True), torch.ones(2)
        called: Any = None if unisono.get_rank() else first.get_future().then(lambda _: WAYS[way](later))
        later = unisono.all_reduce(tensor, async_op=True)
    if called:
        words = "UsageError: .*, which cannot end before the callback ends. Wait in the main program"
        with pytest.raises(RuntimeError, match=words):  # torch makes it of the callback's error
            called.wait()
    later.wait()
    assert tensor.tolist() == [2.0, 2.0]


@pytest.mark.ranks(2)
def test_callbacks_that_wait_in_a_cycle_raise() -> None:
    """Each waits for a later call of the other group: at least one raises, and the other one goes on."""
    me, groups, errors = unisono.get_rank(), [unisono.new_group() for _ in range(2)], list[str]()
    later: list[Any] = []
    with first_on_rank_0():
        first: list[Any] = [unisono.all_reduce(torch.ones(3), group=group, async_op=True) for group in groups]
        waits = [lambda _, other=other: later[other].wait(20) for other in (1, 0)]
        called = [] if me else [work.get_future().then(wait) for work, wait in zip(first, waits, strict=True)]
        later += [unisono.all_reduce(torch.ones(2), group=group, async_op=True) for group in groups]
    for pending in (*called, *later):
        try:
            pending.wait()
        except RuntimeError as error:  # torch makes it of a callback's error
            errors.append(str(error))
    assert bool(errors) is not bool(me)
    assert all("UsageError: a callback on the thread of " in error for error in errors)


@pytest.mark.quick
def test_first_calls_of_threads_share_a_worker() -> None:
    class Bare(SimpleNamespace):
        """A group without ranks."""

    def begin(group: Any, start: threading.Barrier) -> Any:
        start.wait()
        return worker_of(group)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            group: Any = Bare(name="bare", worker=None, making=threading.RLock())
            with ThreadPoolExecutor(2) as pool:
                found = [*pool.map(begin, [group] * 2, [threading.Barrier(2)] * 2)]
            for worker in {*found}:
                worker.close()
            assert found == [group.worker] * 2
    finally:
        sys.setswitchinterval(usual)


@pytest.mark.ranks(2, 3)
def test_calls_of_callbacks_precede_waiting_calls(ranks: int) -> None:
    me, told = unisono.get_rank(), list[bool]()
    first, inner, blocking, outer, last = (torch.full((count,), 1.0 + me) for count in (2, 3, 4, 5, 6))

    def callback(_: Any) -> None:
        told.extend((pending.get_future().done(), pending.is_success()))
        unisono.all_reduce(inner, async_op=True).wait()
        unisono.all_reduce(blocking)

    with first_on_rank_0():
        pending = unisono.all_reduce(first, async_op=True)
        if me:
            pending.wait()  # the callback runs at once, on this thread; on rank 0 later, on the worker's
        called: Any = pending.get_future().then(callback)
        unisono.all_reduce(outer, async_op=True)
    unisono.all_reduce(last)  # after all of them, although nobody has waited for the callback
    called.wait()
    assert {*torch.cat([inner, blocking, outer, last]).tolist()} == {ranks * (ranks + 1) / 2}
    assert told == [True, True]


@pytest.mark.ranks(2)
def test_call_of_a_handler_comes_second() -> None:
    """The handler's call is queued while the other one is under way on the caller's thread. It comes second."""
    group, me = unisono.init(), unisono.get_rank()
    tensors = [torch.full((4,), 10.0 * k + me) for k in range(3)]
    works = [unisono.all_reduce(tensors[2], async_op=True)]
    unisono.barrier()
    until(lambda: not group.worker.busy)
    run = group.run

    def runs(*where: int) -> int:
        group.run = run
        status = run(*where)
        assert status
        unisono.send(torch.zeros(1), 1)
        works.append(unisono.all_reduce(tensors[1], async_op=True))
        return status

    if me:
        unisono.recv(None, 0)
        works += [unisono.all_reduce(tensor, async_op=True) for tensor in tensors[:2]]
    else:
        group.run = runs
        works.append(unisono.all_reduce(tensors[0], async_op=True))
    for work in works:
        work.wait()
    assert [tensor[0].item() for tensor in tensors] == [1.0, 21.0, 41.0]


@in_new_world(2)
def test_known_background_call_names_its_line() -> None:
    """Its first step, in which ranks exchange sizes, has been planned before."""
    tensor, me = torch.ones(3), unisono.get_rank()
    unisono.gather(tensor, None if me else [torch.empty(3) for _ in range(2)])
    if me:
        with pytest.raises(unisono.PeerGone, match=r"test_work\.py:\d+\)"):
            unisono.gather(tensor, async_op=True).wait()


@pytest.mark.ranks(2, hosts="2x2")
def test_groups_may_start_in_any_order() -> None:
    """Over hosts, each has memory of its own on each host, which its ranks make within its first call."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    groups = [unisono.new_group() for _ in range(16)]
    turns = sorted(range(16), key=lambda k: (k * (5, 7, 11, 13)[me]) % 16)
    for _ in range(3):
        tensors = [torch.full((300,), 10.0**me * (k + 1)) for k in range(16)]
        works: list[Any] = [unisono.all_reduce(tensors[k], group=groups[k], async_op=True) for k in turns]
        for pending in works:
            pending.wait()
        assert [tensor[7].item() for tensor in tensors] == [(10**size // 9) * (k + 1.0) for k in range(16)]


@pytest.mark.ranks(2)
def test_errors_come_with_wait() -> None:
    me, other = unisono.get_rank(), unisono.new_group(range(2))
    for _ in range(3):
        pending: Any = unisono.all_reduce(torch.ones(3 + me), async_op=True)
        for raising in (pending.wait, pending.result):
            with pytest.raises(unisono.MismatchError, match="test_work"):
                raising()
        assert isinstance(pending.exception(), unisono.MismatchError)
        assert not pending.is_success()
    unisono.all_reduce(torch.ones(3), "max", other)
    if me == 0:
        pending = unisono.all_reduce(torch.ones(3), "max", other, async_op=True, timeout_s=0.05)
        with pytest.raises(unisono.WaitTimeout):
            pending.wait()
    unisono.barrier()


@pytest.mark.ranks(2)
def test_work_keeps_its_tensors() -> None:
    """The caller has dropped its tensors before the call ends."""
    group = unisono.init()
    results = [torch.zeros(20_000 * group.size) for _ in range(20)]
    works = []
    for k, result in enumerate(results):
        works.append(unisono.all_gather_single(result, torch.full((20_000,), float(k + group.rank)), async_op=True))
        torch.full((20_000,), -1.0)  # takes the place of what has been given up too early
    for work in works:
        work.wait()
    assert [float(result.sum()) for result in results] == [20_000.0 * (k + k + 1) for k in range(20)]
