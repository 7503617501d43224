"""Moves messages that a rank has sent while it makes no call: they go on only while a thread is in the carrier."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from ...engine.carrier import Carrier, Handle, Lost
from .. import AT_END

_SLICE_NS = 5_000_000  # how long the thread waits before it looks which messages have left
_END_S = 1.0  # how long the process waits for threads at its end

_moving: set[Mover] = set()
"""Those whose thread runs. A forked process has no such thread, and no connections: its carriers refuse every call."""
os.register_at_fork(after_in_child=_moving.clear)


class Mover:
    """Has a thread while sent messages have not left. Its waits move all messages of the carrier."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier, self._lock = carrier, threading.RLock()  # a signal handler may make a call in `add`
        self._messages: list[Handle] = []

    def add(self, messages: Iterable[Handle]) -> None:
        """Move these messages, if they have not left yet."""
        with self._lock:
            self._messages += [message for message in messages if self._is_under_way(message)]
            if self in _moving or not self._messages:
                return
            threading.Thread(target=self._move, name="unisono-messages", daemon=True).start()
            _moving.add(self)

    def _move(self) -> None:
        never, waited_ns = ctypes.c_int64(), 0
        while self._have_not_left():
            self._carrier.wait(ctypes.addressof(never), 1, 0, 0, waited_ns, _SLICE_NS)
            waited_ns += _SLICE_NS

    def _have_not_left(self) -> bool:
        with self._lock:
            self._messages = [message for message in self._messages if self._is_under_way(message)]
            if not self._messages:
                _moving.discard(self)
            return bool(self._messages)

    def _is_under_way(self, message: Handle) -> bool:
        with suppress(Lost):
            return bool(self._carrier.pending([message]))
        return False


def end_threads() -> None:
    """At the end of the process, after its carriers have been closed: wait until no thread is in torch.

    A thread enters torch to free a tensor. There it would abort the process while the interpreter shuts down.
    """
    until = time.monotonic() + _END_S
    while _moving and time.monotonic() < until:
        time.sleep(0.001)


AT_END.append(end_threads)
