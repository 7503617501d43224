"""`group.abort`: every wait of every kind ends on all ranks, with the rank that has aborted and its reason."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import unisono
from tests.support.faults import DEADLINE_S, SOON_S
from tests.support.on_ranks import in_new_world
from tests.support.waiting import frames, once, until
from unisono import PeerFailed, PeerGone
from unisono.calls import p2p
from unisono.calls.work import _Latch
from unisono.engine.mailbox.poller import Poller
from unisono.hosts.carriers.ucx import UcxCarrier
from unisono.ranks.failures.attend import attend
from unisono.ranks.group import group as group_module

LONG = 5_000_000  # more than is under way between hosts

Call = Callable[[], Any]

CALLS: dict[str, Call] = {
    "all_reduce, short": lambda: unisono.all_reduce(torch.ones(3)),
    "all_reduce, long": lambda: unisono.all_reduce(torch.ones(LONG)),
    "in the background": lambda: unisono.all_reduce(torch.ones(3), async_op=True).wait(),
    "by its future": lambda: unisono.all_reduce(torch.ones(3), async_op=True).get_future().wait(),
    "behind the background": lambda: (unisono.barrier(async_op=True), unisono.all_reduce(torch.ones(3))),
    "all_to_all of lists": lambda: unisono.all_to_all([torch.ones(2) for _ in "abc"], [torch.ones(2) for _ in "abc"]),
    "all_reduce_coalesced": lambda: unisono.all_reduce_coalesced([torch.ones(2), torch.ones(3)]),
    "recv": lambda: p2p.recv(None, 2),
    "recv from any": lambda: p2p.recv(),
    "send": lambda: p2p.send(torch.ones(LONG), 2),
    "irecv": lambda: p2p.irecv(None, 2).wait(),
    "irecv, by its future": lambda: p2p.irecv(None, 2).get_future().wait(),
    "isend": lambda: p2p.isend(torch.ones(LONG), 2).wait(),
    "all_gather_object": lambda: unisono.all_gather_object([None] * 3, "x"),
    "recv_object_list": lambda: p2p.recv_object_list([None], 2),
    "new_group": lambda: unisono.new_group([0]),
    "split": lambda: unisono.split(0),
}
"""Calls that end only if rank 2 makes one, too."""

FOR_PEERS = {attend.__code__, Poller.wait.__code__, UcxCarrier.wait.__code__}
WAITS = {*FOR_PEERS, _Latch.wait.__code__, torch.futures.Future.wait.__code__}


def once_waiting(action: Callable[[], object]) -> None:
    """Do something in another thread, as soon as this one waits, or another thread of this rank does so for it."""
    me = threading.get_ident()

    def waits() -> bool:
        at = {thread: frame.f_code for thread, frame in frames().items()}
        return at[me] in WAITS and bool(FOR_PEERS & {*at.values()})

    once(waits, action)


def failure(call: Call) -> PeerFailed:
    with pytest.raises(PeerFailed) as caught:
        call()
    return caught.value


def kill(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


@pytest.mark.sampled(most=5)
@pytest.mark.parametrize("name", CALLS)
def test_every_wait_ends_on_all_ranks(tmp_path: Path, name: str) -> None:
    """Rank 1 aborts the group, in which both it and rank 0 wait for rank 2, which comes too late."""
    waiting, ended = ([tmp_path / f"{word} {rank}" for rank in (0, 1)] for word in ("waiting", "ended"))

    def work() -> tuple[int, str, float]:
        group, aborted_at = unisono.init(), 0.0
        unisono.barrier()
        if group.rank < 2:
            once_waiting(waiting[group.rank].touch)
        if group.rank == 1:

            def end() -> None:
                nonlocal aborted_at
                until(lambda: all(flag.exists() for flag in waiting))
                aborted_at = time.monotonic()
                group.abort("no more data")

            threading.Thread(target=end).start()
        if group.rank == 2:
            until(lambda: all(flag.exists() for flag in ended))
        error = failure(CALLS[name] if group.rank < 2 else unisono.barrier)
        ended_at = time.monotonic()
        if group.rank < 2:
            ended[group.rank].touch()
        for call in CALLS.values():
            assert failure(call).rank == 1
        return error.rank, str(error), ended_at if group.rank == 0 else aborted_at

    with unisono.World(3, timeout_s=DEADLINE_S) as world:
        results = world.run(work)
    assert [rank for rank, _, _ in results] == [1, 1, 1]
    assert all(text.endswith("rank 1 aborted group 'world': no more data") for _, text, _ in results)
    assert results[0][2] - results[1][2] < SOON_S


@in_new_world(4)
def test_who_waits_for_other_ranks_hears_of_it_too(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait for each other's messages with other tags, in their world and in a group of two."""
    flags = [tmp_path / str(rank) for rank in range(4)]
    world = unisono.init()
    pair = unisono.new_group([0, 1])
    inner = unisono.split(0, group=pair) if isinstance(pair, unisono.Group) else None
    if world.rank == 3:
        until(lambda: all(flag.exists() for flag in flags[:3]))
        world.abort()
        assert str(failure(unisono.barrier)) == "rank 3 aborted group 'world'"
        return
    once_waiting(flags[world.rank].touch)
    calls: dict[int, Call] = {
        0: lambda: p2p.recv(None, 1, tag=5),
        1: lambda: unisono.all_reduce(torch.ones(2), group=inner),
        2: lambda: p2p.recv(None, 1, tag=7),
    }
    error = failure(calls[world.rank])
    if world.rank < 2:
        for group in (world, pair, inner):
            failure(lambda group=group: unisono.barrier(group))  # type: ignore[misc]
    assert str(error).endswith(", but rank 3 aborted group 'world'")
    assert world.rank != 1 or "all_reduce(float32[2], sum) #1 of group 'ranks 0, 1'" in str(error)


@in_new_world(2)
def test_an_abort_while_a_rank_looks_at_its_peers(tmp_path: Path) -> None:
    group: Any = unisono.init()
    if group.rank == 1:
        until((tmp_path / "looks").exists)
        group.abort("enough")
        return
    seen = group.liveness.gone

    def gone(rank: int) -> Any:
        (tmp_path / "looks").touch()
        until(lambda: seen(rank))
        return seen(rank)

    group.liveness.gone = gone
    assert failure(lambda: p2p.recv(None, 1)).reason == "aborted group 'world': enough"


@pytest.mark.parametrize("how", ["abort", "exception"])
@pytest.mark.parametrize("hosts", [None, "1+1"])
def test_reason_with_a_surrogate_reaches_the_others(how: str, hosts: str | None) -> None:
    """As in a message with the name of a file that is not UTF-8. It is escaped."""

    def work() -> str:
        if unisono.get_rank():
            if how == "exception":
                raise ValueError("\ud800")
            unisono.init().abort("\ud800")
            return ""
        with pytest.raises(PeerFailed if how == "abort" else PeerGone) as caught:
            unisono.all_reduce(torch.ones(2))
        return str(caught.value)

    with unisono.World(2, hosts=hosts, timeout_s=DEADLINE_S, return_exceptions=True) as world:
        assert "\\ud800" in world.run(work)[0]


@in_new_world(3, all_give=6.0)
def test_the_end_of_a_group_is_not_that_of_the_group_it_was_made_of() -> float:
    world = unisono.init()
    pair = unisono.new_group([0, 2], name="pair")
    if isinstance(pair, unisono.Group):
        if world.rank == 2:
            pair.abort("done")
            pair.abort("again")
        error = failure(lambda: unisono.all_reduce(torch.ones(3), group=pair))
        assert (error.rank, error.reason) == (1, "aborted group 'pair': done")
        assert "rank 1 (world rank 2) aborted group 'pair': done" in str(error)
        p2p.sendrecv(torch.ones(2), 2 - world.rank, torch.ones(2), 2 - world.rank)
    tensor = torch.full((3,), 1.0 + world.rank)
    unisono.all_reduce(tensor)
    return tensor[0].item()


@in_new_world(3, gives=[3.0, 3.0, 0.0])
def test_survivors_of_an_abort_go_on(tmp_path: Path) -> float:
    """The others may leave out who aborts. Their group stands alone, though it lies in the memory of the old one."""
    world = unisono.init()
    if world.rank == 2:
        world.abort("preempted")
        until((tmp_path / "done").exists)
        return 0.0
    assert failure(unisono.barrier).rank == 2
    group = world.shrink(without=[2])
    tensor = torch.full((3,), 1.0 + group.rank)
    unisono.all_reduce(tensor, group=group)
    failure(lambda: unisono.barrier(world))
    if group.rank == 0:
        once_waiting((tmp_path / "waits").touch)
        p2p.recv(None, 1, group)  # it looks at the boards meanwhile
    else:
        until((tmp_path / "waits").exists)
        p2p.send(torch.ones(1), 0, group)
    unisono.barrier(group)
    (tmp_path / "done").touch()
    return tensor[0].item()


@in_new_world(2)
def test_tensors_of_a_call_that_fails_again_and_again_are_held_once() -> None:
    tensor, held = unisono.empty(LONG), []
    for _ in range(3):
        group = unisono.init()
        if group.rank == 1:
            group.abort("again")
        else:
            failure(lambda: unisono.all_reduce(tensor))
            held.append(len(group_module._held))
        group.shrink()
    unisono.all_reduce(tensor.fill_(1))
    assert held == held[:1] * 3 or not held
    assert all(held)


@pytest.mark.ranks(2)
def test_a_closed_group_has_nothing_to_abort() -> None:
    group = unisono.new_group()
    assert isinstance(group, unisono.Group)
    group.close()
    group.abort()
    assert group.broken is None
    unisono.barrier()


@pytest.mark.parametrize("name", ["in the background", "behind the background", "by its future"])
@in_new_world(2, all_give="interrupted by KeyboardInterrupt")
def test_ctrl_c_in_the_wait_for_a_work_is_told_to_the_others(name: str) -> str:
    group = unisono.init()
    unisono.barrier()
    if group.rank == 0:
        if name == "by its future":
            pending = unisono.all_reduce(torch.ones(3), async_op=True)
            pending.get_future()
        once_waiting(kill(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            CALLS["in the background" if name == "by its future" else name]()
    else:
        until(lambda: group.engine.arena.board(0).gave_up.number > 0)
        until(lambda: not group.engine.signature(0, group.engine.call_number))
    error = failure(lambda: unisono.barrier() if "behind" in name else unisono.all_reduce(torch.ones(3)))
    assert error.rank == 0
    return error.reason
