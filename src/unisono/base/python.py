"""Small helps with Python itself: standard error, its garbage collector, its weak sets, what a process makes once, and
threads that are left behind.
"""

import atexit
import ctypes
import gc
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TextIO, TypeVar
from weakref import WeakSet


def tell(text: str) -> None:
    """Write a line to standard error."""
    with suppress(OSError, ValueError, AttributeError):  # standard error may be closed, or None
        sys.stderr.write(text)
        sys.stderr.flush()


def at_terminal(stream: TextIO | None) -> bool:
    """Does a standard stream go to a terminal? It may be closed, or None."""
    with suppress(ValueError, AttributeError):
        return stream.isatty()  # type: ignore[union-attr]
    return False


def is_from_below(error: BaseException) -> bool:
    """Has a function written in Python raised this error, called in the `try` block that has caught it?

    A signal handler is such a function: it runs between any two steps of its thread.
    """
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


@contextmanager
def no_collections() -> Iterator[None]:
    """No automatic collections in this block.

    Modules consist of objects that live on. A collection during an import looks at all of them, and at all of torch's:
    such collections take more time than the imports. After the block, the new objects count as old, as if a collection
    had looked at them: one look takes some milliseconds.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # what a program has frozen itself stays so
                gc.freeze()
                gc.unfreeze()  # what was frozen counts as old
            gc.enable()


_Member = TypeVar("_Member")


def members(weak: WeakSet[_Member]) -> list[_Member]:
    """The members that are still there. Other threads may add some meanwhile, where a loop over the set would raise."""
    while True:
        with suppress(RuntimeError):  # another thread has just added one
            return list(weak)


def nap(since: float, least_s: float, most_s: float) -> None:
    """Sleep for a twentieth of the wait so far: short waits end fast, and long waits use little processor time.

    since: by `time.monotonic`. least_s, most_s: bounds of the nap.
    """
    time.sleep(min(max((time.monotonic() - since) / 20, least_s), most_s))


Made = TypeVar("Made")

_lock = threading.RLock()
"""Held while anything is made. Reentrant: a signal handler may make a call while its thread makes something."""


def make_once(make: Callable[..., Made]) -> Callable[..., Made]:
    """Decorator: call this function once for the same hashable arguments, then return what it has made.

    With `functools.cache`, two threads that ask at the same time both call the function, and one result is dropped.
    Here the second thread waits.
    """
    made: dict[tuple[Any, ...], Made] = {}

    @wraps(make)
    def find(*args: Any) -> Made:
        if args not in made:
            with _lock:
                if args not in made:
                    made.setdefault(args, make(*args))
        return made[args]

    return find


_SIGACTION = struct.Struct("P128si4xP")  # Linux's: the handler, the signals that wait meanwhile, flags, and a restorer
_ASLEEP_S, _WORKS_S = 0.02, 5.0


def leave_behind(thread: threading.Thread) -> None:
    """Nobody waits any more for this daemon thread, which may return from torch while the interpreter shuts down.

    Up to Python 3.13, Python then unwinds the thread's stack. C++ does not allow this for the functions in which
    pybind11 takes Python's lock: it calls `std::terminate`, which would abort the process. So at exit a signal whose
    handler never returns stops the thread, once it sleeps. A thread that works may hold a lock that the exit needs.
    """
    if sys.version_info < (3, 14):  # since then such threads hang by themselves
        atexit.register(_stop_when_asleep, thread)


def _stop_when_asleep(thread: threading.Thread) -> None:
    """Stop a thread that has slept for a moment, or that still works after some seconds."""
    import signal  # which few processes need, and which makes several enumerations

    until, before = time.monotonic() + _WORKS_S, -1
    while thread.is_alive() and ((sleeps := _sleeps(thread)) < 0 or sleeps != before):
        before = sleeps
        thread.join(_ASLEEP_S)
        if time.monotonic() > until:
            break
    if not thread.is_alive() or thread.ident is None:
        return
    libc, earlier = ctypes.CDLL(None), ctypes.create_string_buffer(_SIGACTION.size)
    pause = ctypes.cast(libc.pause, ctypes.c_void_p).value
    for number in reversed(range(signal.SIGRTMIN, signal.SIGRTMAX + 1)):
        libc.sigaction(number, None, earlier)
        if _SIGACTION.unpack(earlier)[0] in (0, pause):  # no other library uses this signal
            libc.sigaction(number, _SIGACTION.pack(pause, b"\xff" * 128, 0, 0), None)  # no other signal ends `pause`
            signal.pthread_kill(thread.ident, number)
            return


def _sleeps(thread: threading.Thread) -> int:
    """How often a thread that sleeps has gone to sleep; -1: it works, or has ended."""
    with suppress(OSError), open(f"/proc/self/task/{thread.native_id}/status") as status:
        facts = dict(line.split(":", 1) for line in status)
        if facts["State"].split()[0] == "S":
            return int(facts["voluntary_ctxt_switches"])
    return -1


def _in_child() -> None:
    """In a forked child, no other thread holds the lock."""
    global _lock  # noqa: PLW0603  each process has one
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_in_child)
