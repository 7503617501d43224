"""Threads that wait for messages, for callers that must not wait for a message that may never come.

A rank itself looks at memory: the last word of each message tells that the message is there. If the message does not
come for some time, a thread of this file waits in the carrier and wakes the rank.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from ...engine.carrier import Carrier, Handle, Lost
from .. import AT_END

_END_S = 1.0  # how long the process waits for threads at its end

_numbers = itertools.count()


class Settling:
    """Messages that a thread waits for.

    over: they are settled.
    error: why one of them will never be settled.
    """

    def __init__(self, handles: Sequence[Handle], at_end: Callable[[], object]) -> None:
        self.over = False
        self.error: Lost | None = None
        self.number, self._handles, self._at_end = next(_numbers), handles, at_end

    def settle(self, idle: _Queue) -> None:
        """Wait for all messages. Then the thread of this queue is idle."""
        try:
            for handle in self._handles:
                handle.settle()
            self.over = True
        except Lost as error:
            self.error = error
        _IDLE.append(idle)
        self._at_end()


_Queue = SimpleQueue[Settling]

_OPEN: set[int] = set()
"""The numbers of the waits that threads still have to do."""
_IDLE: list[_Queue] = []
"""The queues of threads that do nothing now. A forked process has none of these threads."""
os.register_at_fork(after_in_child=_OPEN.clear)
os.register_at_fork(after_in_child=_IDLE.clear)


def settle_apart(handles: Sequence[Handle], at_end: Callable[[], object]) -> Settling:
    """Let an idle thread wait for these messages. at_end: called when they are settled, or one of them never will be.

    If they never are, the thread waits for ever, and another thread does the next waits.
    """
    settling = Settling(handles, at_end)
    try:
        queue = _IDLE.pop()
    except IndexError:
        queue = _Queue()
        threading.Thread(target=_run, args=(queue,), name="unisono-settler", daemon=True).start()
    _OPEN.add(settling.number)
    queue.put(settling)
    return settling


def _run(queue: _Queue) -> None:
    while True:
        settling = queue.get()
        number = settling.number
        settling.settle(queue)
        del settling  # which frees tensors
        _OPEN.discard(number)


def end_threads() -> None:
    """At the end of the process, after its carriers have been closed: wait until no thread is in torch.

    A thread enters torch to free a tensor. There it would abort the process while the interpreter shuts down.
    """
    until = time.monotonic() + _END_S
    while _OPEN and time.monotonic() < until:
        time.sleep(0.001)


AT_END.append(end_threads)


class SentMessages:
    """Moves the sent messages of a carrier that has no thread, while the sender makes no call. A thread waits for one
    message at a time: this wait moves all of them.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier, self._lock = carrier, threading.Lock()
        self._waiting: deque[Handle] = deque()
        self._is_moved = False

    def add(self, handle: Handle) -> None:
        """Let this message go on, if it has not left yet."""
        if self._carrier.own_thread or not self._carrier.pending([handle]):
            return
        with self._lock:
            self._waiting.append(handle)
            if self._is_moved:
                return
            self._is_moved = True
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            if not self._waiting:
                self._is_moved = False
                return
            handle = self._waiting.popleft()
        settle_apart([handle], self._go_on)
