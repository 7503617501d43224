"""Calls of signal handlers, and of what the garbage collector runs, in the middle of a call: they work or raise."""

import os
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import unisono
from tests.support.on_ranks import in_new_world
from tests.support.waiting import once_waiting, until
from unisono.calls import p2p
from unisono.calls.p2p.progress_engine import progress_engine
from unisono.errors import NestedCall

Call = Callable[[], Any]

CALLS: dict[str, Call] = {
    "all_reduce": lambda: unisono.all_reduce(torch.ones(4)),
    "planned": lambda: unisono.all_reduce(torch.ones(5), algorithm="ring"),
    "a list": lambda: unisono.all_to_all([torch.ones(2)], [torch.ones(2)]),
    "coalesced": lambda: unisono.all_reduce_coalesced([torch.ones(2), torch.ones(3)]),
    "objects": lambda: unisono.all_gather_object([None], "x"),
    "a work": lambda: unisono.all_reduce(torch.ones(4), async_op=True).wait(),
    "a new work": lambda: unisono.all_reduce(torch.ones(6), async_op=True).wait(),
    "new_group": lambda: unisono.new_group(),
}


@contextmanager
def within(place: Any, name: str, call: Call, how: str = "a signal") -> Iterator[list[BaseException | None]]:
    """A block in which place.name, when it is called first, is interrupted by code that makes a call.

    Yields what the call has raised; None for nothing.
    """
    original, raised, begun = getattr(place, name), list[BaseException | None](), list[bool]()

    def interrupt(*_: object) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  looked at by the test
            raised.append(error)
        else:
            raised.append(None)

    def interrupted(*args: Any) -> Any:
        if not begun:
            begun.append(True)
            if how == "a signal":
                signal.signal(signal.SIGUSR2, interrupt)
                signal.raise_signal(signal.SIGUSR2)
            else:
                weakref.finalize(set(), interrupt)  # the set is garbage at once
        return original(*args)

    with patch.object(place, name, interrupted):
        yield raised
    assert raised, "nothing was interrupted"


def line(function: Any) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno}"


@pytest.mark.parametrize("inner", CALLS)
@pytest.mark.parametrize("outer", [name for name in CALLS if name != "a new work"])
@pytest.mark.ranks(1)
def test_a_collective_within_a_collective(outer: str, inner: str) -> None:
    """Where the outer call holds the group, which it does on this thread."""
    for _ in range(2):  # then some are known to the fast paths
        CALLS[outer]()
    with within(unisono.init(), "run", CALLS[inner]) as raised:
        CALLS[outer]()
    assert isinstance(raised[0], NestedCall)
    assert isinstance(raised[0], RuntimeError)
    assert (raised[0].inner, raised[0].outer) == (line(CALLS[inner]), line(CALLS[outer]))
    assert "Group('world', rank 0 of 1)" in str(raised[0])
    CALLS[inner]()


def message() -> None:
    p2p.send(torch.full((2,), 5.0), 0, tag=3)
    assert p2p.recv(None, 0, tag=3).tolist() == [5.0, 5.0]


def mailbox() -> Any:
    return progress_engine(unisono.init()).mailbox


NESTED: dict[str, tuple[Call, str, Call, Call, str]] = {
    "the thread of asynchronous calls": (
        unisono.init, "run", CALLS["all_reduce"], lambda: unisono.all_reduce(torch.ones(9), async_op=True).wait(),
        "Group('world', rank 0 of 1)"),
    "an allocation": (
        lambda: unisono.init().engine.arena, "reserve_heap", lambda: unisono.empty(1 << 20),
        lambda: unisono.empty(1 << 20).fill_(1.0), "the heap of rank 0"),
    "send": (mailbox, "submit", lambda: p2p.send(torch.ones(3), 0), message, "the messages of Group('world'"),
    "irecv": (mailbox, "submit", lambda: p2p.irecv(None, 0), message, "the messages of Group('world'"),
    "recv_object_list": (
        mailbox, "submit", lambda: p2p.recv_object_list([None], 0), message, "the messages of Group('world'"),
}  # fmt: skip
"""Where code is interrupted that holds something, the call there, and which words name what is held."""


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.ranks(1)
def test_call_that_needs_what_is_held_raises(name: str) -> None:
    place, step, inner, outer, held = NESTED[name]
    with within(place(), step, inner, "garbage" if name.startswith("the thread") else "a signal") as raised:
        outer()
    assert isinstance(raised[0], NestedCall)
    assert raised[0].inner == line(inner)
    assert held in str(raised[0])
    outer()


@pytest.mark.ranks(2)
def test_within_a_refusal() -> None:
    group = unisono.init()
    if group.rank == 0:
        with within(group.engine, "refuse_call", CALLS["all_reduce"]) as raised, pytest.raises(ValueError):
            unisono.all_reduce(torch.ones(4), "no such op")
        assert isinstance(raised[0], NestedCall)
    else:
        with pytest.raises(unisono.MismatchError):
            unisono.all_reduce(torch.ones(4))
    unisono.barrier()


@pytest.mark.ranks(1)
def test_an_asynchronous_call_is_made_afterwards() -> None:
    first, second, works = torch.full((4,), 2.0), torch.full((4,), 3.0), []
    group = unisono.init()
    unisono.all_reduce(first)
    number = group.engine.call_number
    with within(group, "run", lambda: works.append(unisono.all_reduce(second, async_op=True))) as raised:
        unisono.all_reduce(first)
    assert raised == [None]
    works[0].wait()
    assert group.engine.call_number == number + 2


@pytest.mark.ranks(1)
def test_calls_of_another_group_and_messages_work() -> None:
    other = unisono.new_group()
    unisono.all_reduce(torch.ones(4), group=other)

    def inner() -> None:
        unisono.all_reduce(torch.ones(4), group=other)
        message()

    with within(unisono.init(), "run", inner) as raised:
        CALLS["all_reduce"]()
    with within(mailbox(), "submit", CALLS["all_reduce"]) as raised_in_message:
        message()
    assert raised == raised_in_message == [None]


@pytest.mark.parametrize("outer", ["all_reduce", "in the background", "recv"])
@in_new_world(2)
def test_signal_in_a_wait_for_a_late_peer(tmp_path: Path, outer: str) -> None:
    """A handler's call raises at once where its thread is in a call of the group; where it is not, it is made."""
    flag, me, nests = tmp_path / "handled", unisono.get_rank(), outer == "all_reduce"
    first, second = torch.full((3,), 1.0 + me), torch.full((5,), 10.0 + me)
    unisono.barrier()

    def handler(*_: object) -> None:
        if not nests:
            flag.touch()
        with pytest.raises(NestedCall) if nests else nullcontext():
            unisono.all_reduce(second)
        flag.touch()

    if me == 0:
        signal.signal(signal.SIGUSR2, handler)
        once_waiting(lambda: os.kill(os.getpid(), signal.SIGUSR2))
    else:
        until(flag.exists)
    if outer == "recv":
        if me == 0:
            p2p.recv(first, 1)
        else:
            unisono.all_reduce(second)
            p2p.send(torch.full((3,), 3.0), 0)
    elif work := unisono.all_reduce(first, async_op=not nests):
        work.wait()
        if me == 1:
            unisono.all_reduce(second)
    unisono.barrier()
    if me == 0:
        assert flag.exists()
        assert first.tolist() == [3.0] * 3
        assert second.tolist() == [10.0 if nests else 21.0] * 5


@in_new_world(2)
def test_uncaught_handler_error_ends_the_group(tmp_path: Path) -> None:
    flag = tmp_path / "ended"
    group = unisono.init()
    if group.rank == 0:
        signal.signal(signal.SIGUSR2, lambda *_: unisono.barrier())
        once_waiting(lambda: os.kill(os.getpid(), signal.SIGUSR2))
        with pytest.raises(NestedCall):
            unisono.barrier()
        flag.touch()
    else:
        until(flag.exists)
    with pytest.raises(unisono.PeerFailed) as caught:
        unisono.barrier()
    assert caught.value.reason.startswith("NestedCall: " if group.rank else "interrupted by NestedCall")


@pytest.mark.ranks(1)
def test_a_timer_that_makes_calls_all_the_time() -> None:
    """Wherever the signal comes, the handler's call is made or raises."""
    counts = {"made": 0, "nested": 0}

    def handler(*_: object) -> None:
        try:
            unisono.all_reduce(torch.ones(4))
            p2p.sendrecv(torch.ones(2), 0, torch.ones(2), 0, tag=1)
            counts["made"] += 1
        except NestedCall:
            counts["nested"] += 1

    def some() -> bool:
        unisono.all_reduce(torch.ones(4))
        unisono.all_reduce(torch.ones(4), async_op=True).wait()
        p2p.sendrecv(torch.ones(2), 0, torch.ones(2), 0, tag=2)
        return min(counts.values()) >= 3

    handler()  # to plan a call takes longer than the timer's period
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        until(some)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
