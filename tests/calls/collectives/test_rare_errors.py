"""Errors at rare places of a call. The other ranks learn of them, as of those at usual places."""

import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import PropertyMock, patch

import pytest
import torch

import unisono
from tests.calls.collectives.test_drive import SUMS, ended, sums
from tests.support.faults import DEADLINE_S
from tests.support.on_ranks import in_new_world
from tests.support.waiting import until
from unisono.calls.work import Worker

NO_THREAD = RuntimeError("can't start new thread")


def no_threads(on: int) -> Any:
    """The system refuses threads on this rank."""
    here = unisono.get_rank() == on
    return patch.object(threading.Thread, "start", side_effect=NO_THREAD) if here else nullcontext()


@pytest.mark.parametrize("planned", [False, True])
@in_new_world(2, all_give=SUMS)
def test_missing_worker_thread_refuses_call(planned: bool) -> list[float]:
    tensor = torch.ones(4)
    if planned:
        unisono.all_reduce(tensor)
    error: Any = unisono.MismatchError if unisono.get_rank() else RuntimeError
    with no_threads(on=0), pytest.raises(error, match="start new thread"):
        ended(unisono.all_reduce(tensor, async_op=True))
    return sums()


@in_new_world(2)
def test_missing_message_thread_cancels_message() -> None:
    """The message goes to the next receive, which a thread finishes."""
    refused, tensor = torch.zeros(4), torch.zeros(4)
    if unisono.get_rank():
        unisono.barrier()
        unisono.send(torch.ones(4), 0)
    else:
        with no_threads(on=0), pytest.raises(RuntimeError, match="start new thread"):
            unisono.irecv(refused, 1)
        work = unisono.irecv(tensor, 1)
        unisono.barrier()
        until(work.get_future().done, DEADLINE_S)
    assert refused.tolist() == [0.0] * 4
    assert tensor.tolist() == [1.0 - unisono.get_rank()] * 4


@in_new_world(2)
def test_error_behind_busy_worker_ends_group() -> None:
    """The worker is busy from the moment when this thread has found it idle."""
    ended(unisono.all_reduce(torch.ones(4), async_op=True))
    if unisono.get_rank():
        with pytest.raises(unisono.PeerFailed, match="interrupted by UsageError"):
            unisono.barrier()
        return
    busy = patch.object(Worker, "busy", PropertyMock(side_effect=[False, True]))
    with busy, patch.object(Worker, "finish", side_effect=unisono.UsageError), pytest.raises(unisono.UsageError):
        unisono.barrier()


@pytest.mark.parametrize("form", ["all_reduce", "coalesced"])
@pytest.mark.ranks(2)
def test_fast_path_keeps_errors_of_handlers(form: str) -> None:
    """A signal comes while a fast path looks for the plan of an earlier call."""

    class Op(str):
        signals = False

        def __hash__(self) -> int:
            if Op.signals:
                Op.signals = False
                signal.raise_signal(signal.SIGUSR1)
            return super().__hash__()

    def stop(*_: object) -> None:
        raise RuntimeError("out of time")

    op, tensor, usual = Op("sum"), torch.ones(4), signal.signal(signal.SIGUSR1, stop)
    try:
        for turn in range(3):
            Op.signals = turn == 2 and not unisono.get_rank()
            error: Any = unisono.MismatchError if unisono.get_rank() else RuntimeError
            with pytest.raises(error, match="out of time") if turn == 2 else nullcontext():
                if form == "all_reduce":
                    unisono.all_reduce(tensor, op)
                else:
                    unisono.all_reduce_coalesced([tensor], op)
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert sums() == SUMS


@pytest.mark.ranks(2)
def test_fast_messages_keep_errors_of_handlers() -> None:
    class Watched(torch.Tensor):
        def data_ptr(self) -> int:
            for error in errors:
                raise error
            return super().data_ptr()

    errors, tensor, other = iter([KeyError("a handler's")]), torch.ones(4), 1 - unisono.get_rank()
    unisono.sendrecv(tensor, other, torch.ones(4), other)
    with pytest.raises(KeyError, match="a handler's"):
        unisono.send(tensor.as_subclass(Watched), other)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("error", [LookupError("no such host"), ValueError()])
@pytest.mark.ranks(2)
def test_error_of_an_iterable_of_ranks(error: Exception) -> None:
    def ranks() -> Iterator[int]:
        yield 0
        raise error

    class Color:
        def __index__(self) -> int:
            raise error

    me = unisono.get_rank()
    expected, words = (unisono.MismatchError, str(error) or "ValueError") if me else (type(error), str(error))
    with pytest.raises(expected, match=words):
        unisono.new_group([0, 1] if me else ranks())
    color: Any = 0 if me else Color()
    with pytest.raises(expected, match=words):
        unisono.split(color)
    assert sums() == SUMS
