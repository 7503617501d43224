"""A copy of a process that waits, and goes on in its place if it is killed, or stops."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from .wire import shared_numbers


class Spare:
    """The copy of this process. It goes on from the moment of its making, as if it had been stopped since.

    So what a process remembers needs no other form: it makes a copy before it says what others may build on.

    patience_s: a process that does not call `renew` for twice this time is killed by its copy.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s, self._turns = patience_s, shared_numbers(1)
        self._pid = self._number = 0
        self._holds: object = None
        self._newest = shared_numbers(1)  # which copy is to go on; where one is just made, there are two
        self._own = os.pidfd_open(os.getpid())

    def renew(self, holds: object, let_go: Callable[[], None]) -> bool:
        """Make a copy that holds this, if there is none. True: this process is a copy that goes on now.

        let_go: called in the copy first.
        """
        self._turns[0] += 1
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = 0
        if self._pid and self._holds == holds:
            return False
        before, self._pid, self._holds, self._number = self._pid, 0, holds, self._number + 1
        if not before:
            self._newest[0] = self._number
        try:
            self._pid = os.fork()
        except OSError:  # the system has no room for another process: the next turn tries again
            _end(before)
            return False
        if self._pid:
            self._newest[0] = self._number
            _end(before)
            return False
        let_go()
        poller = select.poll()
        poller.register(self._own, select.POLLIN)
        seen, looked_at = 0, time.monotonic()
        while not poller.poll(1e3 * self._patience_s):
            passed_s = time.monotonic() - looked_at
            if self._turns[0] == seen and passed_s < 2 * self._patience_s:  # else this process was stopped itself
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._own, signal.SIGKILL)
            seen, looked_at = self._turns[0], looked_at + passed_s
        if self._newest[0] != self._number:
            os._exit(0)
        os.close(self._own)
        self._own = os.pidfd_open(os.getpid())
        return True

    def end(self) -> None:
        """End the copy."""
        _end(self._pid)


def _end(child: int) -> None:
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
