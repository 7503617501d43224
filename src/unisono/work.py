"""Asynchronous calls: a handle for the caller, and the thread of a group that runs them in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from .errors import WaitTimeout
from .units import seconds

__all__ = ["Work", "Worker"]

Result_co = TypeVar("Result_co", covariant=True)


class _Latch:
    """Set once, for good: a threading.Event that costs its price only where somebody has to wait."""

    __slots__ = ("_event", "_lock", "_set")

    def __init__(self) -> None:
        self._set, self._lock = False, threading.Lock()
        self._event: threading.Event | None = None

    def set(self) -> None:
        with self._lock:
            self._set, event = True, self._event
        if event is not None:
            event.set()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        with self._lock:
            event = self._event = self._event or threading.Event()
            if self.is_set():
                event.set()
        return event.wait(timeout)


class Work(Generic[Result_co]):
    """A call that runs in the background. Its tensors must be left alone until `wait` has returned."""

    def __init__(self, call: str) -> None:
        self._call = call
        self._done = _Latch()
        self._exception: BaseException | None = None
        self._result: Any = None
        self._future: torch.futures.Future[Any] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended; returns True, or raises what the call raised.

        timeout: seconds to wait; WaitTimeout after that, while the call goes on. None: as long as the call may take.
        """
        timeout = None if timeout is None else seconds(timeout)
        if not self._done.wait(timeout):
            raise WaitTimeout(self._call, timeout or 0.0, (), details=" It goes on in the background.")
        if self._exception is not None:
            raise self._exception
        return True

    def result(self, timeout: float | None = None) -> Result_co:
        """Wait, and return what the call wrote or made: a tensor, a list of tensors, or None where there is none."""
        self.wait(timeout)
        result: Result_co = self._result
        return result

    def is_completed(self) -> bool:
        """Has the call ended, well or not?"""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Has the call ended well?"""
        return self._done.is_set() and self._exception is None

    def exception(self) -> BaseException | None:
        """What the call raised, or None."""
        return self._exception

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that completes with the call, with its result or with what it raised."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._done.is_set():
                    self._complete(self._future)
            return self._future

    def _finish(self, exception: BaseException | None, result: Any = None) -> None:
        with self._lock:
            self._exception, self._result = exception, result
            self._done.set()
            future = self._future
        if future is not None:  # its callbacks may ask this work anything
            self._complete(future)

    def _complete(self, future: torch.futures.Future[Any]) -> None:
        if self._exception is None:
            future.set_result(self._result)
        else:
            future.set_exception(self._exception)


class Worker:
    """The thread of a group that runs its asynchronous calls, one after the other, and the callbacks of their futures.

    What a callback calls is run there and then, before the calls that wait. So the order of calls is the same on every
    rank, if a callback is added before the next call is made: it runs here or, where its call was over already, at once
    on the thread that added it.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Work[Any], Callable[[], Any], _Latch] | None] = queue.SimpleQueue()
        self._last = _Latch()  # set when the latest call has ended, and its callbacks have
        self._last.set()
        self._thread = threading.Thread(target=self._loop, name=f"unisono {name}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Are there calls, or callbacks, that have not ended? Not for a call out of such a callback."""
        return not self._last.is_set() and threading.current_thread() is not self._thread

    def submit(self, call: str, action: Callable[[], Any]) -> Work[Any]:
        """Run the action after all that were submitted before; out of a callback on this very thread, at once."""
        work: Work[Any] = Work(call)
        if threading.current_thread() is self._thread:
            _perform(work, action)
        else:
            over = self._last = _Latch()
            self._queue.put((work, action, over))
        return work

    def close(self, *, wait: bool = True) -> None:
        """Let the calls end, then the thread; and wait until it has ended."""
        self._queue.put(None)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def _loop(self) -> None:
        torch.set_grad_enabled(False)
        while (item := self._queue.get()) is not None:
            work, action, over = item
            _perform(work, action)
            over.set()
            del item, work, action


def _perform(work: Work[Any], action: Callable[[], Any]) -> None:
    """Run the action, and tell the work how it has ended."""
    try:
        result = action()
    except BaseException as error:  # noqa: BLE001  it reaches the caller by wait()
        work._finish(error)  # noqa: SLF001  the worker is the other half of Work
    else:
        work._finish(None, result)  # noqa: SLF001
