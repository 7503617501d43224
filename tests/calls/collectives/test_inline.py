"""Calls like earlier ones, and calls back to back: asynchronous ones never block their caller."""

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unisono
from tests.conftest import examples
from tests.support.matrix import Case
from tests.support.matrix_driver import check
from unisono.base.config import Config
from unisono.calls.dispatch.planning import patience_ns


@pytest.mark.ranks(1)
def test_call_needing_no_peer_ends_at_once() -> None:
    tensor = torch.arange(5.0)
    unisono.all_reduce(tensor)
    unisono.barrier(async_op=True).wait()  # starts the worker
    pending: Any = unisono.all_reduce(tensor, async_op=True)
    assert pending.is_completed()
    assert pending.is_success()
    assert pending.exception() is None
    assert pending.wait(1.0)
    assert pending.result() is tensor
    assert pending.get_future().wait() is tensor
    called: list[Any] = []
    pending.get_future().then(called.append)
    assert len(called) == 1


@pytest.mark.parametrize("count", [2, 3_000_000])
@pytest.mark.ranks(3)
def test_late_peer_blocks_no_caller(count: int) -> None:
    me, flag = unisono.get_rank(), torch.zeros(1)
    tensor = torch.full((count,), 1.0 + me)
    for _ in range(3):
        unisono.all_reduce(tensor, "max")
    if me:
        unisono.recv(flag, 0)  # sent after the others' call has returned
    pending: Any = unisono.all_reduce(tensor, "max", async_op=True)
    if not me:
        for peer in range(1, unisono.get_world_size()):
            unisono.send(flag, peer)
    later = torch.full((3,), float(me))
    unisono.all_reduce(later)
    assert pending.is_completed()  # calls keep their order
    pending.wait()
    assert [tensor[0].item(), tensor[-1].item(), *later.tolist()] == [3.0] * 5


@pytest.mark.ranks(2)
def test_two_groups_in_opposite_order() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    groups = [unisono.new_group(range(size)) for _ in range(2)]
    tensors = [torch.full((4,), 1.0 + me + k) for k in range(2)]
    for tensor, group in zip(tensors, groups, strict=True):
        unisono.all_reduce(tensor, "min", group)
    for _ in range(20):
        order = (0, 1) if me else (1, 0)
        works: list[Any] = [unisono.all_reduce(tensors[k], "sum", groups[k], async_op=True) for k in order]
        for pending in works:
            pending.wait()
        for tensor in tensors:
            tensor.div_(2)
    assert [tensor.sum().item() for tensor in tensors] == [4.0, 8.0]


@pytest.mark.ranks(2)
def test_errors_come_with_wait() -> None:
    me = unisono.get_rank()
    tensors = torch.full((3,), 1.0 + me), torch.full((4,), 2.0 + me)
    for tensor in tensors:
        unisono.all_reduce(tensor)
    for _ in range(3):
        pending: Any = unisono.all_reduce(tensors[me], async_op=True)
        for raising in (pending.wait, pending.result):
            with pytest.raises(unisono.MismatchError, match="test_inline"):
                raising()
        assert isinstance(pending.exception(), unisono.MismatchError)
        assert not pending.is_success()
    other = unisono.new_group(range(2))
    unisono.all_reduce(tensors[0], "max", other)
    if me == 0:
        late: Any = unisono.all_reduce(tensors[0], "max", other, async_op=True, timeout_s=0.05)
        with pytest.raises(unisono.WaitTimeout):
            late.wait()
    unisono.barrier()


def test_worker_runs_long_calls_given_processors() -> None:
    def group(to_spare: bool) -> Any:
        return SimpleNamespace(engine=SimpleNamespace(processors_to_spare=to_spare))

    sizes = 8, 1 << 20, 1 << 24
    assert [patience_ns(group(True), nbytes) > 0 for nbytes in sizes] == [True, True, False]
    brief, *longer = (patience_ns(group(False), nbytes) for nbytes in sizes)
    assert 0 < brief < longer[0] < longer[1]  # as long as the call may take


def test_late_peers_cause_no_false_mismatch() -> None:
    """Who looks up at the gate may see a peer in the next call already: that is no disagreement."""

    def many(calls: int) -> None:
        late = random.Random(unisono.init().rank)
        for seed in range(calls):
            check(Case("all_reduce", "float32", "sum", 1, seed=seed % 31))
            if late.random() < 0.5:
                time.sleep(late.random() * 1e-3)

    with unisono.World(3, timeout_s=60, config=Config(look_up_s=1e-6, spins=0)) as world:
        world.run(many, examples(600))


def test_environment_reaches_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_LOOK_UP_S", "0.000001")
    assert unisono.run(lambda: unisono.init().engine.config.look_up_s, 2) == [1e-6] * 2


@pytest.mark.ranks(2)
def test_callbacks_may_make_and_test_calls() -> None:
    first, second, third = torch.ones(50_000), torch.ones(50_000), torch.ones(5)
    work = unisono.all_reduce(first, async_op=True)
    called = work.get_future().then(lambda _: unisono.all_reduce(third))
    queued = unisono.all_reduce(second, async_op=True)
    asked = work.get_future().then(lambda _: work.get_future().done() and work.is_success())
    called.wait()
    queued.wait()
    assert (third[0].item(), asked.wait()) == (2.0, True)


@pytest.mark.ranks(2)
def test_work_keeps_its_tensors() -> None:
    """Temporaries that nobody else holds live until the call has ended."""
    group = unisono.init()
    results = [torch.zeros(20_000 * group.size) for _ in range(20)]
    works = []
    for k, result in enumerate(results):
        works.append(unisono.all_gather_single(result, torch.full((20_000,), float(k + group.rank)), async_op=True))
        torch.full((20_000,), -1.0)  # takes the place of what has been given up too early
    for work in works:
        work.wait()
    assert [float(result.sum()) for result in results] == [20_000.0 * (k + k + 1) for k in range(20)]
