"""Calls that cannot be interrupted, made by a thread, so that the caller can stop waiting: a store whose process is
stopped, or whose host is lost, answers neither yes nor no, and torch's client then waits without a limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

_LOOK_S = 0.05
T = TypeVar("T")


class Limited:
    """A thread that makes one call at a time. After a TimeoutError it is not to be used again: it is in that call."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._started = False

    def call(self, function: Callable[[], T], deadline: float, look: Callable[[], object] = lambda: None) -> T:
        """What the function returns or raises; TimeoutError at the deadline. look: called now and then, may raise."""
        if not self._started:
            threading.Thread(target=_make, args=(self._calls,), name="unisono asks a store", daemon=True).start()
            self._started = True
        call = _Call(function)
        self._calls.put(call)
        while not call.over.wait(max(0.0, min(_LOOK_S, deadline - time.monotonic()))):
            look()
            if time.monotonic() >= deadline:
                raise TimeoutError("no answer")
        if call.error is not None:
            raise call.error
        returned: T = call.returned
        return returned

    def close(self) -> None:
        """Let the thread end."""
        self._calls.put(None)


class _Call:
    """A call, and what has come of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.over = function, threading.Event()
        self.returned: Any = None
        self.error: BaseException | None = None


def _make(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        try:
            call.returned = call.function()
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            call.error = error
        call.over.set()
