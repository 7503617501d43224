"""What another process of the same user does, and its Python stacks, while it runs; see `stacks`."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...engine.process.alive import watch_process
from ...engine.process.stacks import SIGNAL, STACKS_NAME

_FIRST_LINE_S, _WHOLE_S, _PAUSE_S = 0.5, 2.0, 0.001
_FRESH_S = 1.0  # younger stacks are an answer, too, if another process asked for them: a signal cuts system calls short


class ProcessStatus(NamedTuple):
    """A process as /proc/PID/status shows it; without a state if it cannot be seen.

    state: what its first thread does. R: runs; S: sleeps; D: waits for the system; T: stopped by a signal; t: stopped
    by a debugger; Z, X: has ended.
    tracer: the process that debugs it; 0: none.
    handled: the signals with a handler, one bit each.
    blocked, pending: the same for its first thread, which mostly gets the signals.
    """

    state: str = ""
    tracer: int = 0
    handled: int = 0
    blocked: int = 0
    pending: int = 0

    def takes(self, number: int) -> bool:
        """Would it run a handler of its own, now, if it were sent this signal? A debugger would stop it instead."""
        handled = self.handled >> (number - 1) & 1
        return bool(handled) and not self.busy(number) and not self.tracer and self.state in ("R", "S", "D")

    def busy(self, number: int) -> bool:
        """Is it about to run its handler of this signal, or in it, or does it block the signal?"""
        return bool((self.blocked | self.pending) >> (number - 1) & 1)


def process_status(pid: int) -> ProcessStatus:
    with suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        said = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        handled, blocked, own, shared = (int(said[name][0], 16) for name in ("SigCgt", "SigBlk", "SigPnd", "ShdPnd"))
        return ProcessStatus(said["State"][0], int(said["TracerPid"][0]), handled, blocked, own | shared)
    return ProcessStatus()


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


def ask_for_stacks(pid: int, ticks: int, number: int, patience_s: float = _WHOLE_S) -> Answer:
    """Where all threads of a process are. ticks: when it has started; number: what `answer_with_stacks` returned.

    patience_s: how long to wait for the whole answer; for its first line, no longer than half a second.
    """
    if not number:
        return Answer(silent="its process does not tell it")
    try:
        process = watch_process(pid, ticks)
        if process is None:
            return Answer(silent="its process has ended")
        try:
            return _ask(process, pid, number, patience_s)
        finally:
            os.close(process)
    except OSError as error:
        return Answer(silent=f"the system refuses it: {error.strerror}")


def _ask(process: int, pid: int, number: int, patience_s: float) -> Answer:
    place = f"/proc/{pid}/fd/{number}"
    if not os.readlink(place).startswith(f"/memfd:{STACKS_NAME}"):
        return Answer(silent="its process does not tell it")
    file = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        seen = os.fstat(file)
        if seen.st_size and 0 <= time.time() - seen.st_mtime < _FRESH_S:
            return Answer.of(_read(pid, file, 0, patience_s))
        if not process_status(pid).takes(SIGNAL):
            return Answer(silent="its process takes no signals now")
        signal.pidfd_send_signal(process, SIGNAL)
        return Answer.of(_read(pid, file, seen.st_size, patience_s))
    finally:
        os.close(file)


def _read(pid: int, file: int, start: int, patience_s: float) -> str:
    """The file's content from a byte on, once there is some and the handler has ended."""
    began, last = time.monotonic(), start
    while True:
        size, waited_s = os.fstat(file).st_size, time.monotonic() - began
        busy = process_status(pid).busy(SIGNAL)  # after the size: a process that writes is busy until it has ended
        limit_s = patience_s if size > start else min(patience_s, _FIRST_LINE_S)
        if (size == last > start and not busy) or waited_s > limit_s:
            return os.pread(file, size - start, start).decode(errors="replace")
        last = size
        time.sleep(_PAUSE_S)
