"""Messages by Gloo, which comes with torch.

What Gloo does, and what follows from it:
- It says that a message has arrived only to those who wait for it. So senders put a word behind their bytes, receivers
  look at that word in memory, and `settle` is for messages that are there.
- A wait that is not over when its time is up ends all connections of the group, for good. So no real wait has a limit;
  and it is how a carrier is aborted: a wait of a millisecond for a message that does not come wakes all others.
- A message that is larger than the receive that it meets ends the receiver's process.
- A message moves when its receive has been posted, however small it is.
- A connection is made by its first message, which waits until the peer has one, too. So all are made at the start.
- The record that a profiler has of a message ends with the wait for it, and writes where it was, even if the profiler's
  memory has been freed. So messages are started where nothing is recorded.
- A message whose receive is forgotten before it arrives keeps Gloo's thread busy, and who destroys the group waits for
  that thread for ever. So a carrier that is forgotten ends its connections first.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroupGloo  # also where another answers to its name in torch.distributed
from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.errors import InternalError
from ...base.python import members
from ...engine.carrier import Handle, Lost

_record: Callable[[bool], None] = torch._C._autograd._enable_record_function  # noqa: SLF001  # of this thread
_LIMIT = timedelta(hours=1)
_AT_ONCE = timedelta(milliseconds=1)
_CONNECT_TAG = (1 << 31) - 1
_ABORT_TAG = (1 << 31) - 2
_LAST_S = 5.0
"""How long the last messages may take to leave: each waits here until its receive has been posted."""


class GlooCarrier:
    """A group of Gloo in which this rank is connected to some others; all ranks make it at the same time.

    store: where the ranks find each other's addresses. address: this rank's, as the others reach it. timeout_s: the
    limit for all connections; later there is none. peers: whom this rank will have messages for, and these for it; all
    others by default. Raises Lost for a peer that cannot be reached.
    """

    name = "gloo"
    tags = 1 << 30
    own_thread = True
    wait = None

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        address: str,
        timeout_s: float,
        peers: Iterable[int] | None = None,
    ) -> None:
        gloo: Any = ProcessGroupGloo  # torch has neither types nor public names for what is used of it
        options = gloo._Options()  # noqa: SLF001
        options._devices = [gloo.create_device(hostname=address, lazy_init=True)]  # noqa: SLF001
        options._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._over = ""
        self._leaving: set[_GlooHandle] = set()
        """What is being sent."""
        self._given_up: list[Handle] = []
        """Gloo may move them until this carrier has ended its connections."""
        self._peers: list[int] = []
        """Those to whom there is a connection."""
        self._group = gloo(store, rank, size, options)
        _groups.add(self._group)
        self._connect({*(range(size) if peers is None else peers)} - {rank}, timedelta(seconds=timeout_s))

    def _connect(self, peers: set[int], limit: timedelta) -> None:
        """Say a word to each peer. The first one to a peer waits until that one, too, has something to say."""
        for peer in sorted(peers):  # in ascending order on all ranks, so that no circle of them waits
            words = torch.zeros(2, dtype=torch.uint8, device="cpu")
            try:
                receive = _unrecorded(self._group.recv, words[:1], peer, _CONNECT_TAG)
                send = _unrecorded(self._group.send, words[1:], peer, _CONNECT_TAG)
                receive.wait(limit)
                send.wait(limit)
            except RuntimeError as error:
                raise _lost(peer, error) from None
            self._peers.append(peer)

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> _GlooHandle:
        """See `Carrier`."""
        with self._lock:
            self._check(peer)
            try:
                handle = _GlooHandle(_unrecorded(self._group.send, data, peer, tag), peer, data, self._leaving)
            except RuntimeError as error:
                raise _lost(peer, error) from None
            self._leaving.add(handle)
            return handle

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> _GlooHandle:
        """See `Carrier`."""
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
        """See `Carrier`."""
        for handle in messages:
            self._given_up.append(handle)
            self._leaving.discard(handle)

    def abort(self) -> None:
        """See `Carrier`. The peers see that the connections end."""
        self._end("this rank has aborted its messages")

    def close(self) -> None:
        """See `Carrier`. What was sent may leave before, for some seconds. Who still waits for a message of this rank
        then learns that its connection is closed.
        """
        if self._leaving and not self._over and os.getpid() == self._process:
            last = threading.Thread(target=self._settle_all, name="unisono-last-messages", daemon=True)
            last.start()
            last.join(_LAST_S)
        self._end("this rank has closed its carrier")

    def __del__(self) -> None:
        if hasattr(self, "_group"):
            self._end("nobody has this carrier any more")

    def _settle_all(self) -> None:
        for handle in list(self._leaving):
            with suppress(Lost):
                handle.settle()

    def _end(self, why: str) -> None:
        with self._lock:
            first, self._over = not self._over, self._over or why
            if not first or os.getpid() != self._process:
                return
            for peer in self._peers:  # the first whose connection is not broken yet will do, and breaks all
                with suppress(RuntimeError):
                    never = torch.empty(1, dtype=torch.uint8, device="cpu")
                    _unrecorded(self._group.recv, never, peer, _ABORT_TAG).wait(_AT_ONCE)

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


_groups: weakref.WeakSet[Any] = weakref.WeakSet()
"""Gloo's groups of this process, used or not."""


def _in_child() -> None:
    """A forked child never destroys them: it would wait for threads that it does not have."""
    for group in members(_groups):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


os.register_at_fork(after_in_child=_in_child)


class _GlooHandle:
    """A message under way. leaving: what its carrier is sending."""

    __slots__ = ("_data", "_leaving", "_lock", "_peer", "_settled", "_work")

    def __init__(self, work: Any, peer: int, data: torch.Tensor, leaving: set[_GlooHandle]) -> None:
        self._work, self._peer, self._data, self._leaving = work, peer, data, leaving
        self._lock, self._settled = threading.Lock(), False

    def settle(self) -> None:
        """See `Handle`."""
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
    """What Gloo says, without the place in its source, and without its advice."""
    said = re.sub(r"^\[[^]]*\] ", "", str(error).partition("\n")[0])
    return Lost(peer, said.partition(". This is typically")[0])
