"""Messages by Gloo, which comes with torch.

What Gloo does, and what follows from it:
- It reports the arrival of a message only to a thread that waits for it. So senders put a word behind their bytes,
  receivers look at this word in memory, and `settle` is for messages that are there.
- A wait that is not over when its time is up ends all connections of the group, for good. So no real wait has a limit.
  An abort uses this: a wait of a millisecond for a message that does not come ends all other waits.
- A message that is larger than its receive ends the receiver's process.
- Even a small message moves only when its receive has been posted.
- The first message to a peer makes the connection, and waits until the peer sends, too, up to five times the limit. So
  all are made at the start, each when the store says that both ranks have come to it.
- A profiler's record of a message ends with the wait for it. The wait writes to the record, even if the profiler's
  memory has been freed. So messages are started where no profiler records.
- A message with a dropped receive keeps Gloo's thread busy, and a thread that destroys the group waits for Gloo's for
  ever. So a carrier that is dropped ends its connections first.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    ProcessGroupGloo,
)  # the class itself: in torch.distributed, `answer_to` may put another one in its place
from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.errors import InternalError
from ...base.python import members
from ...engine.carrier import Handle, Lost
from . import await_key

_record: Callable[[bool], None] = torch._C._autograd._enable_record_function  # noqa: SLF001  # of this thread
_LIMIT = timedelta(days=3650)
"""Longer than any group lives: a wait that runs out of time ends all connections."""
_AT_ONCE_S = 0.001
_CONNECT_TAG = (1 << 31) - 1
_ABORT_TAG = (1 << 31) - 2
_LIMITS = 5  # for a connection Gloo waits this many times the limit of its group
_LAST_S = 5.0  # how long the last messages may take to leave: each waits until its receive has been posted


class GlooCarrier:
    """A group of Gloo in which this rank is connected to all others; all ranks make it at the same time.

    store: where the ranks find each other's addresses.
    address: this rank's address, at which the others reach it.
    timeout_s: the limit for all connections; later there is none.

    Raises Lost for a peer that cannot be reached.
    """

    name = "gloo"
    tags = 1 << 30
    own_thread = True
    wait = compiled = None

    def __init__(self, store: Store, rank: int, size: int, address: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        gloo: Any = ProcessGroupGloo  # torch has neither types nor public names for the parts used here
        options = gloo._Options()  # noqa: SLF001
        options._devices = [gloo.create_device(hostname=address, lazy_init=True)]  # noqa: SLF001
        options._timeout = timedelta(seconds=max(_AT_ONCE_S, timeout_s / _LIMITS))  # noqa: SLF001
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._over = ""
        self._leaving: set[_GlooHandle] = set()  # the messages that are being sent
        self._given_up: list[Handle] = []  # Gloo may move them until this carrier has ended its connections
        self._peers: list[int] = []  # the ranks with a connection to this one
        self._group = gloo(store, rank, size, options)
        _groups.add(self._group)
        self._connect(store, rank, {*range(size)} - {rank}, deadline)

    def _connect(self, store: Store, rank: int, peers: set[int], deadline: float) -> None:
        """Exchange a word with each peer."""

        def left() -> timedelta:
            return timedelta(seconds=max(_AT_ONCE_S, deadline - time.monotonic()))

        for peer in sorted(peers):  # in ascending order on all ranks, so that no circle of ranks waits
            words = torch.zeros(2, dtype=torch.uint8, device="cpu")
            try:
                store.set(f"{rank} connects to {peer}", "")
                if not await_key(store, f"{peer} connects to {rank}", deadline):
                    raise Lost(peer, "it does not connect")
                receive = _unrecorded(self._group.recv, words[:1], peer, _CONNECT_TAG)
                send = _unrecorded(self._group.send, words[1:], peer, _CONNECT_TAG)
                receive.wait(left())
                send.wait(left())
            except RuntimeError as error:
                raise _lost(peer, error) from None
            self._peers.append(peer)

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> _GlooHandle:
        with self._lock:
            self._check(peer)
            try:
                handle = _GlooHandle(_unrecorded(self._group.send, data, peer, tag), peer, data, self._leaving)
            except RuntimeError as error:
                raise _lost(peer, error) from None
            self._leaving.add(handle)
            return handle

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> _GlooHandle:
        with self._lock:
            self._check(peer)
            try:
                return _GlooHandle(_unrecorded(self._group.recv, data, peer, tag), peer, data, self._leaving)
            except RuntimeError as error:
                raise _lost(peer, error) from None

    def pending(self, messages: Iterable[Handle]) -> list[Handle]:
        """See `Carrier`. Gloo can only wait."""
        return [*messages]

    def progress(self) -> None:
        """See `Carrier`. Nothing: Gloo has a thread."""

    def give_up(self, messages: Iterable[Handle]) -> None:
        for handle in messages:
            self._given_up.append(handle)
            self._leaving.discard(handle)

    def abort(self) -> None:
        """See `Carrier`. The peers see that the connections end."""
        self._end("this rank has aborted its messages")

    def close(self) -> None:
        """See `Carrier`. Sent messages may leave before, for some seconds. Then ranks that still wait for messages of
        this rank learn that the connection is closed.
        """
        if self._leaving and not self._over and os.getpid() == self._process:
            last = threading.Thread(target=self._settle_all, name="unisono-last-messages", daemon=True)
            last.start()
            last.join(_LAST_S)
        self._end("this rank has closed its carrier")

    def __del__(self) -> None:
        if hasattr(self, "_group"):
            self._end("the carrier is no longer in use")

    def _settle_all(self) -> None:
        for handle in list(self._leaving):
            with suppress(Lost):
                handle.settle()

    def _end(self, why: str) -> None:
        with self._lock:
            first, self._over = not self._over, self._over or why
            if not first or os.getpid() != self._process:
                return
            for peer in self._peers:  # the first peer with a working connection is enough: it breaks all
                with suppress(RuntimeError):
                    never = torch.empty(1, dtype=torch.uint8, device="cpu")
                    _unrecorded(self._group.recv, never, peer, _ABORT_TAG).wait(timedelta(seconds=_AT_ONCE_S))

    def _check(self, peer: int) -> None:
        if self._over:
            raise Lost(peer, self._over)
        if os.getpid() != self._process:
            raise InternalError("a forked process has no connections of its own to the ranks of other hosts")


def _unrecorded(post: Callable[..., Any], data: torch.Tensor, peer: int, tag: int) -> Any:
    """Start a message, unseen by any profiler."""
    _record(False)
    try:
        return post([data], peer, tag)
    finally:
        _record(True)


_groups: weakref.WeakSet[Any] = weakref.WeakSet()  # Gloo's groups of this process, in use or not


def _in_child() -> None:
    """A forked child never destroys these groups: it would wait for threads that it does not have."""
    for group in members(_groups):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


os.register_at_fork(after_in_child=_in_child)


class _GlooHandle:
    """A message under way. leaving: the messages that its carrier is sending."""

    __slots__ = ("_data", "_leaving", "_lock", "_peer", "_settled", "_work")

    def __init__(self, work: Any, peer: int, data: torch.Tensor, leaving: set[_GlooHandle]) -> None:
        self._work, self._peer, self._data, self._leaving = work, peer, data, leaving
        self._lock, self._settled = threading.Lock(), False

    def settle(self) -> None:
        with self._lock:  # a second wait would be for another message
            if self._settled:
                return
            try:
                self._work.wait(_LIMIT)
            except RuntimeError as error:
                raise _lost(self._peer, error) from None
            finally:
                self._leaving.discard(self)
            self._settled = True


def _lost(peer: int, error: RuntimeError) -> Lost:
    """Gloo's error, without the place in its source, and without its advice."""
    said = re.sub(r"^\[[^]]*\] ", "", str(error).partition("\n")[0])
    return Lost(peer, said.partition(". This is typically")[0])
