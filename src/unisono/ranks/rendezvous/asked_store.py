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
from torch.distributed import PrefixStore, Store

from ...base.errors import UnisonoError
from ...base.python import leave_behind, nap
from ...hosts.addresses import store_place
from .rendezvous_messages import store_closed, store_silent

_LEVEL = "TORCH_CPP_LOG_LEVEL"  # if the user has set this variable, torch's level does not change
_FATAL = 3


@cache
def _level() -> tuple[ctypes.c_int, int]:
    """Torch's own level, below which it prints nothing, and its usual value; if it cannot change, another number."""
    with suppress(OSError, ValueError):
        if _LEVEL not in os.environ:
            core = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
            level = ctypes.c_int.in_dll(core, "FLAGS_caffe2_log_level")
            return level, level.value
    return ctypes.c_int(), 0


_LOOK_S, _SILENT_S = 0.05, 1.0
"""How often a thread that waits for an answer handles signals, and after how long a silence it looks for the reason."""
T = TypeVar("T")


class Limited:
    """A thread that makes one call of torch at a time. After a TimeoutError it is still in it: do not use it again.

    Meanwhile torch prints only what ends the process.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], deadline: float, look: Callable[[], object] = lambda: None) -> T:
        """Call the function. Raises TimeoutError at the deadline. look: called if it takes long; may raise."""
        if self._thread is None:
            self._thread = threading.Thread(target=_make, args=(self._calls,), name="unisono asks a store", daemon=True)
            self._thread.start()
        future, began = Future[T](), time.monotonic()
        self._calls.put((function, future))
        try:
            while not wait([future], max(0.0, min(_LOOK_S, deadline - time.monotonic()))).done:
                if time.monotonic() > began + _SILENT_S:
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


_in_torch = set[threading.Thread]()


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch prints only what ends the process, in all its threads, until the last of them leaves this context."""
    level, usual = _level()
    _in_torch.add(threading.current_thread())
    level.value = max(usual, _FATAL)
    try:
        yield
    finally:
        _in_torch.discard(threading.current_thread())
        level.value = usual
        if any(thread.is_alive() for thread in tuple(_in_torch)):  # a forked child has none of these threads
            level.value = max(usual, _FATAL)


def _make(calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        function, future = call
        try:
            with _quiet():
                result = function()
            future.set_result(result)
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits for it
            future.set_exception(error)


_LEAST_S, _MOST_S, _WAITS_S = 0.001, 0.005, 1.0
"""The shortest limit, as to torch's stores none at all means for ever; the longest nap where a store tells nobody; and
how long a rank waits in the store.
"""

_AT_LEAST_S = 1.0  # how long a question may take at least, also when its time is up already


class AskedStore:
    """The methods of torch's stores that a meeting needs, asked by a rank.

    Raises PeerGone, or as rank 0 PeerFailed, if the store has gone, and WaitTimeout if it has not answered by the
    deadline.

    look: called while the store has not answered for a second, and before these errors; may raise the reason.
    """

    def __init__(self, store: Store, rank: int, deadline: float, look: Callable[[], object] = lambda: None) -> None:
        self._store, self._rank, self._deadline, self._look = store, rank, deadline, look
        self._thread, self._began = Limited(), time.monotonic()
        self.where = store_place(store)
        self._awaited, self._since = "", 0.0  # the key that this rank waits for, and since when

    def enter(self, part: str) -> None:
        """From now on, keys are those of this part of the store."""
        self._store = PrefixStore(part, self._store)

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

    def delete(self, key: str) -> None:
        self._ask(lambda: self._store.delete_key(key))

    def check(self, keys: list[str]) -> bool:
        """Are these keys set?"""
        return self._ask(lambda: bool(self._store.check(keys)))

    def get(self, key: str) -> bytes:
        """The value of a key that is set."""
        return self._ask(lambda: bytes(self._store.get(key)))

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
        if not self.where or time.monotonic() > self._since + _WAITS_S:
            nap(self._since, _LEAST_S, max(_LEAST_S, limit_s if self.where else min(limit_s, _MOST_S)))
            return self.now(key)

        def wait() -> bytes | None:
            with suppress(RuntimeError):  # the time is up; or the store has gone, which `check` raises
                self._store.wait([key], timedelta(seconds=max(_LEAST_S, limit_s)))
                return bytes(self._store.get(key))
            return bytes(self._store.get(key)) if self._store.check([key]) else None

        return self._ask(wait)

    def _ask(self, question: Callable[[], T]) -> T:
        asked = time.monotonic()
        try:
            return self._answer(question)
        except UnisonoError:
            raise
        except TimeoutError as error:
            self._look()
            now = time.monotonic()
            raise store_silent(self.where, self._rank, now - self._began, now - asked) from error
        except RuntimeError as error:
            self._look()
            raise store_closed(self.where, self._rank, error) from error

    def _answer(self, question: Callable[[], T]) -> T:
        return self._thread.call(question, max(self._deadline, time.monotonic() + _AT_LEAST_S), self._look)

    def close(self) -> None:
        """Ask no more; the store stays."""
        self._thread.close()
        self._look = lambda: None  # a bound method of its owner: the cycle would keep the store's connection for long
