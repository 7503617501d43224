"""Calls that end in unusual ways: refused, interrupted at any line, or behind another thread's. No value is wrong."""

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count
from linecache import getline
from types import FrameType
from typing import Any
from unittest.mock import MagicMock, Mock, patch

import pytest
import torch

import unisono
from tests.calls.collectives.test_exact import wait_for
from tests.conftest import NIGHTLY
from tests.support.on_ranks import DEADLINE_S, in_new_world
from tests.support.waiting import until
from unisono.calls import coalesced, objects
from unisono.calls.dispatch import blocks, make
from unisono.engine.kernels import kernel
from unisono.ranks.failures import attend


class Stop(Exception):
    """Raised by a signal handler."""


def sums(group: unisono.Group | None = None) -> list[float]:
    """The sums of all_reduces of other values each."""
    found = []
    for k in range(5):
        tensor = torch.full((4,), 10.0 * k + unisono.get_rank())
        unisono.all_reduce(tensor, group=group)
        found.append(tensor[0].item())
    return found


SUMS = [20.0 * k + 1 for k in range(5)]


FULL, NO_THREAD = MemoryError("no memory for it"), RuntimeError("can't start new thread")
NO_HOST, SILENT = LookupError("no such host"), ValueError()
RANKS, COLOR = MagicMock(**{"__iter__.side_effect": NO_HOST}), MagicMock(**{"__index__.side_effect": SILENT})
Fault = tuple[Any, str] | None
REFUSED: dict[str, tuple[Exception, Fault, Callable[[Any], Any]]] = {
    "a copy, async": (
        FULL, (make, "copy"), lambda group: unisono.all_reduce(torch.ones(2, 3).t(), group=group, async_op=True)),
    "the first thread": (
        NO_THREAD, (threading.Thread, "start"), lambda group: unisono.all_reduce(torch.ones(4), "max", group, True)),
    "the thread of a known call": (
        NO_THREAD, (threading.Thread, "start"), lambda group: unisono.all_reduce(torch.ones(4), "sum", group, True)),
    "objects": (FULL, (objects, "_empty"), lambda group: unisono.all_gather_object([None] * 2, 5, group)),
    "ranks": (NO_HOST, None, lambda _: unisono.new_group(range(2) if unisono.get_rank() else RANKS)),
    "color, no words": (SILENT, None, lambda _: unisono.split(0 if unisono.get_rank() else COLOR)),
}  # fmt: skip
"""What fails on rank 0: the error, what raises it (None: an argument), and the call."""


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.ranks(2)
def test_error_before_entry_refuses_call(what: str) -> None:
    """The other rank hears of it in this call, and both go on."""
    (error, fault, call), group, me = REFUSED[what], unisono.new_group(), unisono.get_rank()
    assert sums(group) == SUMS
    failing = patch.object(*fault, side_effect=error) if fault and not me else nullcontext()
    expected, words = (unisono.MismatchError, str(error) or "ValueError") if me else (type(error), str(error))
    with failing, pytest.raises(expected, match=words):
        wait_for(call(group))
    assert sums(group) == sums() == SUMS


@pytest.mark.parametrize("where", ["another thread", "the background"])
@in_new_world(2, timeout_s=DEADLINE_S)
def test_timeout_covers_earlier_calls(where: str) -> None:
    """An earlier call of rank 0 waits for rank 1, which does not come before rank 0 has run out of time."""
    tensor, group = torch.ones(4), unisono.new_group()
    unisono.all_reduce(tensor, group=group)
    if unisono.get_rank():
        unisono.barrier()
        with suppress(unisono.PeerFailed):  # the earlier call may still succeed
            unisono.all_reduce(tensor, group=group)
        with pytest.raises(unisono.PeerFailed):
            unisono.all_reduce(tensor, group=group)
        unisono.barrier()
        return
    with ThreadPoolExecutor(1) as pool:
        if where == "the background":
            end: Any = unisono.all_reduce(tensor.clone(), group=group, async_op=True)
        else:
            end = pool.submit(unisono.all_reduce, tensor.clone(), group=group)
            until(group.lock.locked)
        words = "Earlier calls" if where == "the background" else "Another thread of this rank"
        with pytest.raises(unisono.WaitTimeout, match=words):
            unisono.all_reduce(tensor, group=group, timeout_s=0.2)
        unisono.barrier()
        with suppress(unisono.UnisonoError):
            end.result()
    unisono.barrier()


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.ranks(2)
def test_interrupted_refusal_ends_group(error: type[BaseException]) -> None:
    """Before the others hear of it. They would take this rank's next call for the refused one."""
    group, tensor = unisono.new_group(), torch.ones(4)
    if not unisono.get_rank():
        with patch.object(group.engine, "refuse_call", side_effect=error), pytest.raises(error):
            unisono.all_reduce(tensor, "bogus", group=group)
    with pytest.raises(unisono.PeerFailed, match="interrupted"):
        unisono.all_reduce(tensor, group=group)


@pytest.mark.ranks(2)
def test_refusal_does_not_end_an_earlier_call() -> None:
    """In a deep recursion it may fail to give a call up. Then the next call does, also if it is refused."""
    group, tensor = unisono.new_group(), torch.ones(4)
    unisono.all_reduce(tensor, group=group)
    if not unisono.get_rank():
        failing = patch.multiple(attend, attend=Mock(side_effect=RecursionError), interrupted=Mock())
        with failing, pytest.raises(RecursionError):
            unisono.all_reduce(tensor, group=group)
        with pytest.raises(unisono.PeerFailed, match="before that was over"):
            unisono.all_reduce(tensor, "bogus", group=group)
    unisono.barrier()
    with pytest.raises(unisono.PeerFailed, match="before that was over"):
        unisono.all_reduce(tensor, group=group)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("steps", ["passes", "sizes"])
@pytest.mark.ranks(2)
def test_exception_between_steps_of_a_call(steps: str, error: type[BaseException]) -> None:
    """The other ranks must not take this rank's next call for the rest of this one."""
    group, me = unisono.new_group(), unisono.get_rank()
    number = group.engine.call_number

    def interrupt(*given: Any) -> Any:
        if group.engine.call_number > number:
            raise error
        return move(*given)

    move = kernel("pack.move")
    if steps == "passes":
        tensors = [torch.ones(400_000)]
        hook = patch.object(coalesced, "kernel", lambda name: interrupt if name == "pack.move" else kernel(name))
        call = partial(unisono.all_reduce_coalesced, tensors, group=group)
    else:
        tensors, hook = [torch.ones(2 - me)] * 2, patch.object(blocks, "_agreed", interrupt)
        call = partial(unisono.all_to_all, [torch.ones(2), torch.ones(1)], tensors, group=group)
    if me:
        with pytest.raises(unisono.MismatchError if error is Stop else unisono.PeerFailed):
            call()
    else:
        with hook, pytest.raises(error):
            call()
    assert (group.broken is None) == (error is Stop)
    if error is Stop:
        call()


@pytest.mark.ranks(1)
def test_signals_never_leave_the_group_locked() -> None:
    """A handler raises at any line of small calls, of the fast path and of the others, blocking or not."""
    whole, tensor, parts = torch.ones(4), torch.ones(4), [torch.ones(4)]

    def stop(*_: object) -> None:
        raise Stop

    usual = signal.signal(signal.SIGALRM, stop)
    try:
        for k in range(300):
            group = unisono.new_group()
            for _ in range(2):
                unisono.all_reduce(tensor, group=group)
            # Thread.start may raise others in place of Stop.
            with suppress(Stop, KeyError, RuntimeError, unisono.UnisonoError):
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + k * 1e-6)
                until_s = time.monotonic() + 5.0
                while time.monotonic() < until_s:
                    unisono.all_reduce(tensor, group=group)
                    unisono.all_reduce(whole, group=group, async_op=True).wait()
                    unisono.all_gather(parts, tensor, group=group)
            if group.worker is not None and group.broken is None:
                group.worker.finish(DEADLINE_S)
            until(lambda lock=group.lock: not lock.locked())  # the worker of a broken group may go on for a moment
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, usual)


@pytest.mark.parametrize(("first", "error"), [(1, KeyboardInterrupt), (2, MemoryError), (3, RecursionError)])
@in_new_world(2, timeout_s=DEADLINE_S, config=unisono.Config(look_up_s=0.002))
def test_exception_at_any_line_of_a_wait(first: int, error: type[BaseException]) -> None:
    """From then on no call of the group gives values: it raises, or the exception came after the call's end.

    Each group has an exception at another line, after the kernel has first returned because rank 1 is late. By night
    each error comes at each line.
    """
    groups = []  # they are not collected in a call
    for k in count(first, 1 if NIGHTLY else 3):
        group = unisono.new_group()
        groups.append(group)
        one, ten = torch.full((4,), 1.0), torch.full((4,), 10.0)
        unisono.all_reduce(one.clone(), group=group)
        lines = 0
        if unisono.get_rank() == 0:
            lines = interrupted_at(k, error, group, one)
        else:
            unisono.barrier()
        values = []
        for tensor in (ten,) if unisono.get_rank() == 0 else (one, ten):
            try:
                unisono.all_reduce(tensor, group=group)
            except unisono.UnisonoError:
                break
            values.append(tensor[0].item())
        assert values in ([], [2.0], [20.0], [2.0, 20.0]), f"line {k}: {values}"
        unisono.barrier()
        ended = torch.tensor([int(lines < k)])
        unisono.broadcast(ended, 0)
        if ended.item():
            break
    assert k > 200


def interrupted_at(k: int, error: type[BaseException], group: unisono.Group, tensor: torch.Tensor) -> int:
    """Make a call in which this exception comes at the k-th line after the kernel has returned unfinished.

    Returns how many such lines there were. Loops count twice at most, as a busy machine makes more turns. The end of a
    `with` block, where Python runs no signal handlers, does not count.
    """
    lines, visits = 0, Counter[tuple[str, int]]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if "unisono" not in frame.f_code.co_filename:
            return None
        if event == "line" and (visits or group.engine.unfinished):
            if not visits:
                late.start()
            here = frame.f_code.co_filename, frame.f_lineno
            visits[here] += 1
            if visits[here] <= 2 and not getline(*here).lstrip().startswith("with "):
                lines += 1
                if lines == k:
                    raise error
        return trace

    late = threading.Thread(target=unisono.barrier)
    sys.settrace(trace)
    with suppress(error, unisono.UnisonoError):
        try:
            unisono.all_reduce(tensor, group=group)
        finally:
            sys.settrace(None)
    late.join()
    return lines


@in_new_world(2)
def test_missing_message_thread_cancels_message() -> None:
    """The message goes to the next receive, which a thread finishes."""
    refused, tensor = torch.zeros(4), torch.zeros(4)
    if unisono.get_rank():
        unisono.barrier()
        unisono.send(torch.ones(4), 0)
    else:
        with (
            patch.object(threading.Thread, "start", side_effect=NO_THREAD),
            pytest.raises(RuntimeError, match="start new thread"),
        ):
            unisono.irecv(refused, 1)
        work = unisono.irecv(tensor, 1)
        unisono.barrier()
        until(work.get_future().done, DEADLINE_S)
    assert refused.tolist() == [0.0] * 4
    assert tensor.tolist() == [1.0 - unisono.get_rank()] * 4


@pytest.mark.parametrize("coalesced", [False, True])
@pytest.mark.ranks(2)
def test_fast_path_keeps_errors_of_handlers(coalesced: bool) -> None:
    """One comes while a fast path looks for the plan of an earlier call."""

    class Op(str):
        def __hash__(self) -> int:
            for error in errors:
                raise error
            return super().__hash__()

    errors: Iterator[Exception] = iter(())
    me, op, tensor = unisono.get_rank(), Op("sum"), torch.ones(4)
    call = partial(unisono.all_reduce_coalesced, [tensor], op) if coalesced else partial(unisono.all_reduce, tensor, op)
    for _ in range(2):
        call()
    errors = iter([] if me else [RuntimeError("a handler's")])
    with pytest.raises(unisono.MismatchError if me else RuntimeError, match="a handler's"):
        call()
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
        unisono.send(tensor.as_subclass(Watched), other)
