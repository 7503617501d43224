"""The Python stacks of another process of the same user, while it runs.

A process that answers has a file of its own, in memory, and a handler of SIGNAL that writes the stacks of all its
threads there (`faulthandler`; it needs no GIL). It tells other processes the number of the file, and they open it
through /proc. The signal would end a process without a handler, so it is sent only where the system shows both, handler
and file.
"""

import faulthandler
import fcntl
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from .alive import process_status, watch_process

SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7  # other systems than Linux import this file, too
_NAME = "unisono-stacks"
_FIRST_LINE_S, _WHOLE_S, _PAUSE_S = 0.5, 2.0, 0.001
_FRESH_S = 1.0
"""Younger stacks are an answer, too, if another process asked for them: a signal cuts system calls short."""

_number = 0
"""The file descriptor where this process writes its stacks; 0: it does not answer."""


class Answer(NamedTuple):
    """The frames of each thread as `faulthandler` writes them, a line each. Empty: `silent` says why.

    The first thread is the one that has answered, mostly the main thread.
    """

    threads: Sequence[Sequence[str]] = ()
    silent: str = ""

    @classmethod
    def of(cls, text: str) -> "Answer":
        """The last answer in the file."""
        found: dict[str, list[str]] = {}
        first = ""
        for line in text.splitlines():
            if line.startswith(("Thread 0x", "Current thread 0x")):
                thread = line[line.index("0x") :].split()[0]
                if thread in found:
                    found = {}
                found[thread] = []
                first = thread if line.startswith("C") else first
            elif line.startswith("  ") and found:
                next(reversed(found.values())).append(line)
        threads = [found[thread] for thread in sorted(found, key=lambda thread: thread != first)]
        return cls(threads, "" if threads else "its process has not answered")


def answer_with_stacks() -> int:
    """Let this process answer `ask_for_stacks` from now on, and return the number of its file; 0: it cannot answer."""
    global _number  # noqa: PLW0603  a process has one handler
    if not _number and signal.getsignal(SIGNAL) is signal.SIG_DFL:
        with suppress(OSError):  # no descriptor is free
            number = os.memfd_create(_NAME, os.MFD_CLOEXEC)
            if number <= 2:  # a standard stream is closed, and the program may open another in its place
                os.close(number)
                return 0
            fcntl.fcntl(number, fcntl.F_SETFL, os.O_APPEND)
            faulthandler.register(SIGNAL, number, all_threads=True, chain=False)
            _number = number
    return _number


def _in_child() -> None:
    """A forked child shares the file with its parent. It must not answer for its parent."""
    global _number  # noqa: PLW0603  see answer_with_stacks
    if _number:
        faulthandler.unregister(SIGNAL)
        with suppress(OSError):
            os.close(_number)
        _number = 0


os.register_at_fork(after_in_child=_in_child)


def ask_for_stacks(pid: int, ticks: int, number: int) -> Answer:
    """Where all threads of a process are. ticks: when it has started; number: what `answer_with_stacks` returned."""
    if not number:
        return Answer(silent="its process does not tell it")
    try:
        process = watch_process(pid, ticks)
        if process is None:
            return Answer(silent="its process has ended")
        try:
            return _ask(process, pid, number)
        finally:
            os.close(process)
    except OSError as error:
        return Answer(silent=f"the system refuses it: {error.strerror}")


def _ask(process: int, pid: int, number: int) -> Answer:
    place = f"/proc/{pid}/fd/{number}"
    if not os.readlink(place).startswith(f"/memfd:{_NAME}"):
        return Answer(silent="its process does not tell it")
    file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        seen = os.fstat(file)
        if seen.st_size and 0 <= time.time() - seen.st_mtime < _FRESH_S:
            return Answer.of(_read(pid, file, 0))
        if not process_status(pid).takes(SIGNAL):
            return Answer(silent="its process takes no signals now")
        signal.pidfd_send_signal(process, SIGNAL)
        return Answer.of(_read(pid, file, seen.st_size))
    finally:
        os.close(file)


def _read(pid: int, file: int, start: int) -> str:
    """The file's content from a byte on, once there is some and the handler has ended."""
    began, last = time.monotonic(), start
    while True:
        size, waited_s = os.fstat(file).st_size, time.monotonic() - began
        busy = process_status(pid).busy(SIGNAL)  # after the size: a process that writes is busy until it has ended
        if (size == last > start and not busy) or waited_s > (_WHOLE_S if size > start else _FIRST_LINE_S):
            return os.pread(file, size - start, start).decode(errors="replace")
        last = size
        time.sleep(_PAUSE_S)
