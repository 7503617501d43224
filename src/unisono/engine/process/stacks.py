"""A process that answers other processes of its user with its Python stacks, while it runs; `ask_stacks` asks.

A process that answers has a file of its own, in memory, and a handler of SIGNAL that writes the stacks of all its
threads there (`faulthandler`; it needs no GIL). It tells other processes the number of the file, and they open it
through /proc. The signal would end a process without a handler, so it is sent only where the system shows both, handler
and file.
"""

import faulthandler
import fcntl
import os
import signal
from contextlib import suppress

from ...base.linux import fill_standard_streams

SIGNAL = getattr(signal, "SIGRTMIN", 0) + 7  # other systems than Linux import this file, too
STACKS_NAME = "unisono-stacks"
"""The name of the file."""

_number = 0  # the file descriptor where this process writes its stacks; 0: it does not answer


def answer_with_stacks() -> int:
    """Let this process answer `ask_for_stacks` from now on, and return the number of its file; 0: it cannot answer."""
    global _number  # noqa: PLW0603  a process has one handler
    if not _number and signal.getsignal(SIGNAL) is signal.SIG_DFL:
        with suppress(OSError):  # no descriptor is free
            fill_standard_streams()
            number = os.memfd_create(STACKS_NAME, os.MFD_CLOEXEC)
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
