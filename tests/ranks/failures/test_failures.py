"""Ranks that die, leave, come late or are interrupted: every other rank hears the same, soon, and the group is over."""

import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unisono
from tests.support.faults import DEADLINE_S, FAILED, SOON_S, all_pids, die
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono import PeerFailed, PeerGone, WaitTimeout
from unisono.base.config import Config

Call = Callable[[torch.Tensor], Any]

CALLS: dict[str, Call] = {
    "all_reduce, short": lambda t: unisono.all_reduce(t[:4]),
    "all_reduce, long": lambda t: unisono.all_reduce(t),
    "all_reduce, ring": lambda t: unisono.all_reduce(t, algorithm="ring"),
    "all_reduce, shared": lambda t: unisono.all_reduce(unisono.init().empty(len(t)).copy_(t)),
    "barrier": lambda t: unisono.barrier(),
    "in the background": lambda t: unisono.all_reduce(t, async_op=True).wait(),  # type: ignore[union-attr]
    "broadcast": lambda t: unisono.broadcast(t, 0),
}


def warm(name: str) -> torch.Tensor:
    """Make the call once while all is well."""
    tensor = torch.ones(60_000)
    CALLS[name](tensor)
    return torch.ones(60_000)


def assert_over(kind: type[Exception]) -> None:
    """Every later call of this group raises the same at once."""
    start = time.monotonic()
    for call in CALLS.values():
        with pytest.raises(kind):
            call(torch.ones(60_000))
    with pytest.raises(kind):
        unisono.init().empty(3)
    assert time.monotonic() - start < SOON_S
    assert unisono.init().broken is not None


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


@in_new_world(2, config=Config(look_up_s=1e-6))
def test_shortest_look_up_keeps_the_timeout(tmp_path: Path) -> None:
    """The peer comes only after the wait has ended."""
    over = tmp_path / "over"
    if unisono.get_rank() == 1:
        until(over.exists, most_s=20)
        return
    with pytest.raises(WaitTimeout):
        unisono.barrier(timeout_s=0.1)
    over.touch()


@in_new_world(2, config=Config(look_up_s=2.0))
def test_rare_looks_delay_a_time_out_once(tmp_path: Path) -> None:
    """The time between two looks was waited, all of it."""
    over, began = tmp_path / "over", time.monotonic()
    if unisono.get_rank() == 1:
        until(over.exists)
        return
    with pytest.raises(WaitTimeout):
        unisono.barrier(timeout_s=0.9)
    assert time.monotonic() - began < 4.5
    over.touch()


@in_new_world(3, all_give=3.0)
def test_a_rank_that_has_done_its_part_may_go() -> float:
    group = unisono.init()
    tensor = torch.full((4,), float(group.rank))
    unisono.all_reduce(tensor)
    if group.rank == 1:
        return tensor[0].item()
    with pytest.raises(PeerGone, match=r"rank 1 .* returned from the function"):
        unisono.all_reduce(tensor)
    return tensor[0].item()


@pytest.mark.parametrize("name", [name for name in CALLS if name != "in the background"])
@in_new_world(4)
def test_who_waits_for_a_late_rank_names_it(name: str) -> None:
    """Everybody runs out of time with the first that does; who comes later still hears that it is too late.

    That is rank 0, which calls when the others wait.
    """
    group = unisono.init()
    tensor = warm(name)
    group.timeout_s = DEADLINE_S if group.rank else 0.2
    if group.rank == 2:
        until(lambda: all(group.engine.arena.board(rank).gave_up[0] for rank in (0, 1, 3)))
        with pytest.raises(PeerFailed, match="WaitTimeout"):
            CALLS[name](tensor)
        assert_over(PeerFailed)
        return
    until(lambda: group.rank != 0 or all(group.engine.entered(rank) == group.engine.call_number for rank in (1, 3)))
    start = time.monotonic()
    with pytest.raises(WaitTimeout) as caught:
        CALLS[name](tensor)
    assert group.rank or time.monotonic() - start < 0.2 + SOON_S
    assert_over(WaitTimeout)
    assert torch.equal(tensor, torch.ones(60_000))
    assert caught.value.missing == (2,)
    assert group.rank or "Rank 2 (pid" in str(caught.value)
    assert group.rank or "last made call #1 of this group" in str(caught.value)


@pytest.mark.parametrize(
    "config", [Config(look_up_s=0.02), Config(look_up_s=0.3)], ids=["while it attends", "in the kernel"]
)
@pytest.mark.parametrize("name", ["all_reduce, short", "all_reduce, long", "all_reduce, shared", "barrier"])
@in_new_world(2, config="config")
def test_an_interrupt_ends_the_call(name: str, config: Config) -> None:
    """Also where it comes before Python has looked up for the first time."""
    group, pids = unisono.init(), all_pids()
    tensor = warm(name)
    if group.rank == 1:
        until(lambda: group.engine.entered(0) == group.engine.call_number)
        os.kill(pids[0], signal.SIGINT)
        until(lambda: group.engine.arena.board(0).gave_up[0] > 0)
        until(lambda: group.engine.signature(0, group.engine.call_number) == 0)
        with pytest.raises(PeerFailed, match="KeyboardInterrupt"):
            CALLS[name](tensor)
    else:
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            CALLS[name](tensor)
        assert time.monotonic() - start < config.look_up_s + SOON_S
    assert_over(PeerFailed)


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
            for call in CALLS.values():
                call(torch.ones(60_000))
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
