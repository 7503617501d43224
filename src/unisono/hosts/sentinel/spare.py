"""A child of a process that waits, and goes on in its place if it is killed, or stops."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

_MOST_BRIEF, _BRIEF_S = 20, 1.0  # how many processes in a row may end within this time


class Spare:
    """The child of this process, which goes on with its descriptors, and with what the process has written down.

    patience_s: a process that does not call `renew` for twice this time is killed by its child.
    turns: a word of shared memory that counts these calls.
    """

    def __init__(self, patience_s: float, turns: memoryview) -> None:
        self._patience_s, self._turns, self._pid = patience_s, turns, 0
        self._own = os.pidfd_open(os.getpid())
        self._since, self._brief = time.monotonic(), 0

    def renew(self, let_go: Callable[[], None]) -> bool:
        """Make a child, if there is none. True: this process is the child, and goes on now.

        Raises RuntimeError in the child if many processes before it have ended at once: it would end, too.

        let_go: called in the child first.
        """
        self._turns[0] += 1
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = 0
        if self._pid:
            return False
        try:
            self._pid = os.fork()
        except OSError:  # the system has no room for another process: the next turn tries again
            return False
        if self._pid:
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
        os.close(self._own)
        self._own = os.pidfd_open(os.getpid())
        before, self._since = self._since, time.monotonic()
        self._brief = self._brief + 1 if self._since < before + _BRIEF_S else 0
        if self._brief == _MOST_BRIEF:
            raise RuntimeError(f"{_MOST_BRIEF} of its processes in a row have ended within {_BRIEF_S:g} s")
        return True

    def end(self) -> None:
        """End the child."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
