"""A store of torch, asked with a limit and without torch's warnings; and what to raise if it has gone.

If the store's process is stopped, or its host is lost, the store does not answer, and torch's client waits without a
limit. So a thread asks it, and the caller can stop waiting. If a store has gone, torch prints a C++ backtrace for each
question, before the error that names the rank; this file keeps torch quiet.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.errors import WaitTimeout
from ...base.python import leave_behind, nap
from ...hosts.addresses import store_place
from .rendezvous_messages import store_closed, store_silent

_LEVEL = "TORCH_CPP_LOG_LEVEL"  # if the user has set this variable, torch's level does not change
_FATAL = 3

_lock = threading.Lock()
_asking = 0  # the number of threads that ask a store
_before = _FATAL


def _in_child() -> None:
    """In a forked child, no thread asks a store."""
    global _lock, _asking  # noqa: PLW0603
    _lock = threading.Lock()
    if _asking and (level := _level()) is not None:
        _asking, level.value = 0, _before


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Torch prints only what ends the process, in all threads of this process."""
    level = _level()
    if level is None:
        yield
        return
    _count(level, 1)
    try:
        yield
    finally:
        _count(level, -1)


def _count(level: ctypes.c_int, more: int) -> None:
    """Threads begin or end asking. The first one stores torch's level, and the last one restores it."""
    global _asking, _before  # noqa: PLW0603  torch has one level per process
    with _lock:
        if not _asking:
            _before = level.value
        _asking += more
        level.value = max(_before, _FATAL) if _asking else _before


@cache
def _level() -> ctypes.c_int | None:
    """Torch's own level, below which it prints nothing; None: it cannot be found, or must not change."""
    try:
        core = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return None if _LEVEL in os.environ else ctypes.c_int.in_dll(core, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


_LOOK_S = 0.05
T = TypeVar("T")


class Limited:
    """A thread that makes one call at a time. After a TimeoutError it is still in its call: do not use it again."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], deadline: float, look: Callable[[], object] = lambda: None) -> T:
        """Call the function. Raises TimeoutError at the deadline. look: called now and then; may raise."""
        if self._thread is None:
            self._thread = threading.Thread(target=_make, args=(self._calls,), name="unisono asks a store", daemon=True)
            self._thread.start()
        future = Future[T]()
        self._calls.put((function, future))
        try:
            while not wait([future], max(0.0, min(_LOOK_S, deadline - time.monotonic()))).done:
                look()
                if time.monotonic() >= deadline:
                    raise TimeoutError("no answer")
        finally:
            if not future.done():
                leave_behind(self._thread)
        return future.result()

    def close(self) -> None:
        """Let the thread end."""
        self._calls.put(None)


def _make(calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        complete(*call)


def complete(function: Callable[[], T], future: Future[T]) -> None:
    """Complete a future with what the function returns or raises in this thread."""
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001  raised in the thread that waits for it
        future.set_exception(error)


_LEAST_S, _MOST_S, _WAITS_S = 0.001, 0.005, 1.0
"""The shortest limit, as to torch's stores none at all means for ever; the longest nap where a store tells nobody; and
how long a rank waits in the store.
"""

_AT_LEAST_S = 1.0  # how long a question may take at least, also when its time is up already


class AskedStore:
    """The methods of torch's stores that a meeting needs.

    Raises RuntimeError if the store has gone, TimeoutError if it has not answered by the deadline.

    look: called now and then while the store does not answer; may raise.
    """

    def __init__(self, store: Store, deadline: float, look: Callable[[], object] = lambda: None) -> None:
        self._store, self._deadline, self._look, self._thread = store, deadline, look, Limited()
        self.where = store_place(store)
        self._awaited, self._since = "", 0.0  # the key that this rank waits for, and since when

    def set(self, key: str, value: str) -> None:
        self._ask(lambda: self._store.set(key, value))

    def set_first(self, key: str, value: str) -> bytes:
        """Set a key that is not set; return its value then."""
        return self.replace(key, "", value)

    def replace(self, key: str, old: str, new: str) -> bytes:
        """Set a key that has the value `old`, or "": that is not set; return its value then."""
        return self._ask(lambda: bytes(self._store.compare_set(key, old, new)))

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, at first 0; return it."""
        return self._ask(lambda: self._store.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        """Are these keys set?"""
        return self._ask(lambda: bool(self._store.check(keys)))

    def now(self, key: str) -> bytes | None:
        """The value of a key; None if it is not set."""
        return self._ask(lambda: bytes(self._store.get(key)) if self._store.check([key]) else None)

    def value(self, key: str, limit_s: float) -> bytes | None:
        """The value of a key, as soon as it is set; None if it is not set within this time.

        A TCPStore answers a client that waits when the key is set. It lets no other thread ask meanwhile, and logs each
        wait that ends without the key: so the rank waits in the store for a second, and from then on looks when the
        time is up. In a FileStore a wait takes whole seconds: there the rank naps and looks.
        """
        if key != self._awaited:
            self._awaited, self._since = key, time.monotonic()
        waits, limit_s = time.monotonic() < self._since + _WAITS_S, max(_LEAST_S, limit_s)
        if not self.where:
            waits, limit_s = False, min(limit_s, _MOST_S)

        def wait() -> bytes | None:
            if waits:
                with suppress(RuntimeError):  # the time is up; or the store has gone, which `check` raises
                    self._store.wait([key], timedelta(seconds=limit_s))
                    return bytes(self._store.get(key))
            return bytes(self._store.get(key)) if self._store.check([key]) else None

        if not waits:
            nap(self._since, _LEAST_S, limit_s)
        return self._ask(wait)

    def _ask(self, question: Callable[[], T]) -> T:
        def ask() -> T:
            with quiet_torch():
                return question()

        return self._thread.call(ask, max(self._deadline, time.monotonic() + _AT_LEAST_S), self._look)

    def close(self) -> None:
        """Ask no more; the store stays."""
        self._thread.close()


@contextmanager
def at_store(where: str, rank: int, began: float, look: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Raise the error for a store that fails in this block. look: raises if a rank that has died is the reason."""
    asked = time.monotonic()
    try:
        yield
    except WaitTimeout:
        raise
    except TimeoutError as error:
        look()
        now = time.monotonic()
        raise store_silent(where, rank, now - began, now - asked) from error
    except RuntimeError as error:
        look()
        raise store_closed(where, rank, error) from error
