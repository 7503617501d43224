"""Whether a process that was there is still there, even if its number belongs to another one by now."""

from __future__ import annotations

import errno
import os
import select
from contextlib import suppress
from pathlib import Path

__all__ = ["has_ended", "start_ticks", "watch_process"]

_NONE = {errno.ESRCH, errno.ENOENT, errno.EINVAL}
"""There is no such process; the last two, by the version of Linux: its number is that of a thread by now."""


def start_ticks(pid: int) -> int:
    """When a process has started, in clock ticks since the boot; 0 if there is none, or it is a zombie."""
    with suppress(OSError):
        # The name, in parentheses, may contain spaces. State is the first field behind it, the start the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    return 0


def watch_process(pid: int, ticks: int) -> int | None:
    """A file descriptor for `has_ended`; None if that process has ended. Raises OSError where none is free."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NONE:
            return None
        raise
    if start_ticks(pid) != ticks:
        os.close(fd)
        return None
    return fd


def has_ended(fd: int) -> bool:
    """Whether the process has ended."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
