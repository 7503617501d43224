"""Threads that wait for messages, for callers that must not wait for what may never come.

A rank itself looks at memory, where the last word of each message tells that the message is there. For long messages,
and for all messages where ranks and their carriers' threads outnumber processors, a thread of this file waits in the
carrier and wakes the rank.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from ...engine.carrier import Handle, Lost

_END_S = 1.0
"""How long the process waits for threads at its end."""

_numbers = itertools.count()
_OPEN: set[int] = set()
"""The numbers of what threads have still to do. A forked process has none of these threads."""
os.register_at_fork(after_in_child=_OPEN.clear)


def _nothing() -> None:
    pass


class Settling:
    """Messages that a thread waits for. over: they are settled. error: one of them never will be.

    then: what is done when they are settled; at_end: when nobody waits for them any more.
    """

    def __init__(self, handles: Sequence[Handle], then: Callable[[], None], at_end: Callable[[], object]) -> None:
        self.over = False
        self.error: Lost | None = None
        self._handles, self._then, self._at_end = handles, then, at_end

    def settle(self) -> None:
        """Wait for all of them, then do what was to be done after it."""
        try:
            for handle in self._handles:
                handle.settle()
        except Lost as error:
            self.error = error
        else:
            self._then()
            self.over = True
        self._at_end()


class CarrierWaiter:
    """A thread, made when there is something to wait for, that waits for one after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, Settling]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def settle(
        self, handles: Sequence[Handle], then: Callable[[], None] = _nothing, at_end: Callable[[], object] = _nothing
    ) -> Settling:
        """Let the thread wait for these, after all that it was given before."""
        settling, number = Settling(handles, then, at_end), next(_numbers)
        _OPEN.add(number)
        self._queue.put((number, settling))
        if self._thread is None or not self._thread.is_alive():  # in a forked process it is not
            self.replace()
        return settling

    def replace(self) -> None:
        """Go on in another thread: this one may wait for ever. It ends when it does not."""
        self._thread = threading.Thread(target=self._run, name="unisono-settler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while threading.current_thread() is self._thread:
            number, settling = self._queue.get()
            settling.settle()
            del settling  # which frees tensors
            _OPEN.discard(number)


def end_threads() -> None:
    """To be called when the process ends, and its carriers have been closed: wait until no thread is in torch, which it
    enters to free a tensor. There it would abort a process whose interpreter shuts down.
    """
    until = time.monotonic() + _END_S
    while _OPEN and time.monotonic() < until:
        time.sleep(0.001)


_IDLE: list[CarrierWaiter] = []
"""Those that wait for nothing."""


def settle_apart(handles: Sequence[Handle], at_end: Callable[[], object]) -> Settling:
    """Let a thread wait for these that waits for nothing else. at_end: called when they are settled, or never will be.

    Where they never are, the thread waits for ever, and another one does what comes next.
    """
    try:
        settler = _IDLE.pop()
    except IndexError:
        settler = CarrierWaiter()

    def over() -> None:
        _IDLE.append(settler)
        at_end()

    return settler.settle(handles, at_end=over)
