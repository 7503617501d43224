"""Asynchronous calls: `Work`, the caller's handle, and `Worker`, the thread that runs a group's calls in order."""

import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

from ..base.errors import UsageError, WaitTimeout
from ..base.units import seconds
from ..engine.process.nested import check_nested
from ..ranks.failures import stall
from ..ranks.group import abort
from ..ranks.group.group import Group

Result_co = TypeVar("Result_co", covariant=True)

_LOOK_UP_S = 0.05
"""How long a thread waits at a time: a signal that comes just before it begins to wait does not wake it."""


class _Latch:
    """An event that is set once. A signal handler that interrupts `set` or `wait` may wait, too."""

    __slots__ = ("_lock", "_set")

    def __init__(self) -> None:
        self._set, self._lock = False, threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        self._set = True
        self._lock.release()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self._set and (left_s := until - time.monotonic()) > 0.0:
            if self._lock.acquire(timeout=min(left_s, _LOOK_UP_S)):
                self._lock.release()  # for the next thread that waits
        return self._set


class Work(Generic[Result_co]):
    """A call in the background. Do not read or write its tensors until `wait` has returned."""

    _future: torch.futures.Future[Any] | None = None
    _group: weakref.ref[Group] | None = None

    def __init__(self, call: object, group: Group | None = None) -> None:
        self._call = call
        if group is not None:
            self._group = weakref.ref(group)
        self._done = _Latch()
        self._exception: BaseException | None = None
        self._result: Any = None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended.

        Ctrl-C in this wait ends the group, as in a blocking call: the other ranks raise PeerFailed.

        Args:
            timeout: Seconds. None: no limit but the call's own.

        Returns:
            True.

        Raises:
            UnisonoError: The call failed; this is its error.
            WaitTimeout: The call has not ended in time. It continues; the error names the ranks that it waits for.
            UsageError: A callback on the group's background thread waits for a later call, which needs the same thread.
        """
        timeout = None if timeout is None else seconds(timeout, "timeout")
        if not self._done.is_set():
            for group in self._groups():
                check_nested(group)
            with _waits_for(self):
                try:
                    late = self._late_after(timeout)
                except BaseException as error:
                    if not self._done.is_set():
                        self._interrupted(error)
                    raise
            if late is not None:
                raise late
        if self._exception is not None:
            raise self._exception
        return True

    def _late_after(self, timeout: float | None) -> WaitTimeout | None:
        """Wait; the error, if the call has not ended in this time."""
        stall.AWAITED.append(None)
        try:
            if self._done.wait(timeout):
                return None
            late = [(group.missing_in_background, group) for group in self._groups()]
        finally:
            stall.AWAITED.pop()
        call, waited_s, details = str(self._call), timeout or 0.0, " It goes on in the background."
        for missing, group in late:
            if missing:
                return WaitTimeout(call, waited_s, missing, group.rank, details, group.named)
        return WaitTimeout(call, waited_s, (), details=details)

    def result(self, timeout: float | None = None) -> Result_co:
        """Wait, then return the call's output: a tensor, a list of tensors, or None if it has none."""
        self.wait(timeout)
        result: Result_co = self._result
        return result

    def is_completed(self) -> bool:
        """Has the call ended, with or without an error?"""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Has the call ended without an error?"""
        return self._done.is_set() and self._exception is None

    def exception(self) -> BaseException | None:
        """The call's error, or None."""
        return self._exception

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that completes when the call ends, with its result or its error."""
        future: torch.futures.Future[Any] | None = self._future
        if future is None:
            future = vars(self).setdefault("_future", torch.futures.Future())
            if self._done.is_set():
                self._complete(future)
        return future

    def _finish(self, exception: BaseException | None, result: Any = None) -> None:
        self._exception, self._result = exception, result
        self._done.set()
        if self._future is not None:
            self._complete(self._future)

    def _complete(self, future: torch.futures.Future[Any]) -> None:
        me = object()
        if vars(self).setdefault("_completed_by", me) is not me or future.done():  # by another thread, or the program
            return
        if self._exception is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._exception)

    def _groups(self) -> list[Group]:
        """The groups whose calls have to go on before this one ends."""
        group = None if self._group is None else self._group()
        return [] if group is None else [group]

    def _interrupted(self, error: BaseException) -> None:
        """An exception, such as Ctrl-C, has ended a wait for this call."""
        for group in self._groups():
            abort.give_up(group, f"interrupted by {type(error).__name__}", str(self._call))


class FinishedWork(Work[Result_co]):
    """A call that was over when it returned."""

    _exception: BaseException | None = None
    _done = _Latch()
    _done.set()

    def __init__(self, result: Any) -> None:  # does less than the base class: each small call makes one
        self._result = result

    def wait(self, timeout: float | None = None) -> bool:
        """Return True."""
        if timeout is not None:
            seconds(timeout, "timeout")
        return True


_here = threading.local()
"""worker: the Worker whose thread this is."""


@contextmanager
def _waits_for(work: Work[Any]) -> Iterator[None]:
    """This thread waits for a call. Raises UsageError if that needs this very thread to go on."""
    own: Worker | None = getattr(_here, "worker", None)
    if own is None:
        yield
        return
    workers = [group.worker for group in work._groups()]  # noqa: SLF001  the worker is the other half of Work
    before, own.awaits = own.awaits, [worker for worker in workers if isinstance(worker, Worker)]
    try:
        needed = [*own.awaits]
        for worker in needed:
            needed += [other for other in worker.awaits if other not in needed]
        if own in needed:
            call = work._call  # noqa: SLF001  as above
            raise UsageError(
                f"a callback on the thread of {own.name} waits for {call}, which cannot end before the callback ends. "
                "Wait in the main program or in another thread."
            )
        yield
    finally:
        own.awaits = before


class Worker:
    """The thread of a group that runs its asynchronous calls in order, and the callbacks of their futures.

    A call that a callback makes runs at once, before queued calls. A callback runs on this thread, or, if its call has
    ended already, at once on the thread that adds it. So the order of calls is the same on every rank, if each callback
    is added before the next call is made.

    awaits: the workers of the call for which a callback on this thread waits.
    """

    def __init__(self, group: Group) -> None:
        self.name, self.awaits = f"group {group.name!r}", list[Worker]()
        self._group = weakref.ref(group)
        self._queue: queue.SimpleQueue[tuple[Work[Any], Callable[[], Any], _Latch] | None] = queue.SimpleQueue()
        self._last = _Latch()  # set when the latest call and its callbacks have ended
        self._last.set()
        self._thread = threading.Thread(target=self._loop, name=f"unisono {group.name}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Are there calls or callbacks that have not ended? False on this thread, for calls from callbacks."""
        return not self._last.is_set() and not self.is_this_thread

    @property
    def is_this_thread(self) -> bool:
        """Does the caller run on this thread?"""
        return threading.current_thread() is self._thread

    def submit(self, call: object, action: Callable[[], Any]) -> Work[Any]:
        """Run the action after all earlier ones; on this thread (from a callback), at once."""
        work: Work[Any] = Work(call, self._group())
        if self.is_this_thread:
            _perform(work, action)
        else:
            over = self._last = _Latch()
            self._queue.put((work, action, over))
        return work

    def finish(self, timeout_s: float | None) -> None:
        """Wait until all calls have ended. Raises WaitTimeout after timeout_s, if given."""
        self.submit("the end of the group", lambda: None).wait(timeout_s)

    def close(self, *, wait: bool = True) -> None:
        """End the thread after its calls. wait: return when it has ended."""
        self._queue.put(None)
        if wait and not self.is_this_thread:
            self._thread.join()

    def _loop(self) -> None:
        torch.set_grad_enabled(False)
        _here.worker = self
        while (item := self._queue.get()) is not None:
            work, action, over = item
            _perform(work, action)
            over.set()
            del item, work, action


def worker_of(group: Group) -> Worker:
    """The thread that runs the group's asynchronous calls. Starts it for the first one."""
    while not isinstance(worker := group.worker, Worker):
        with group.making:
            if not isinstance(group.worker, Worker):
                made = Worker(group)
                if isinstance(group.worker, Worker):  # a signal handler has made one meanwhile
                    made.close(wait=False)
                else:
                    group.worker = made
    return worker


def _perform(work: Work[Any], action: Callable[[], Any]) -> None:
    try:
        result = action()
    except BaseException as error:  # noqa: BLE001  `wait` raises it
        work._finish(error)  # noqa: SLF001  the worker is the other half of Work
    else:
        work._finish(None, result)  # noqa: SLF001
