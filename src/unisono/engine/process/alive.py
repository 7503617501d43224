"""Another process: is it still there, or has another one its number by now? How has it ended?

And may this process read its memory? Linux asks as it does for a debugger: it may where both belong to one user, unless
Yama, a filter for system calls or the other process forbids it.
"""

import ctypes
import errno
import fcntl
import os
import select
import struct
from contextlib import suppress
from functools import cache

from ...base.linux import fill_standard_streams

# Of linux/sched.h and linux/pidfd.h. The structure begins with a mask, and ends with the wait status.
_EXITING = 0x4
_GET_INFO, _INFO_EXIT = 0xC040FF0B, 1 << 3
_INFO = struct.Struct("<Q52xi")

_NONE = {errno.ESRCH, errno.ENOENT, errno.EINVAL}
"""There is no such process. ENOENT, EINVAL, by the version of Linux: a thread has its number by now."""

PARENT_S = 1.0
"""How long to wait, after a process has died, until its parent has written how, if it has promised to. Used where the
system does not tell it: the process has ended before this one looked, and its parent has asked for its status. On a
busy machine the parent may be late.
"""


def start_ticks(pid: int) -> int:
    """When a process has started, in clock ticks since the boot; 0 if there is none, or it is a zombie."""
    with suppress(OSError):
        return _own_start(pid) if pid == os.getpid() else _started(pid)
    return 0


@cache
def _own_start(pid: int) -> int:
    """This process's, which is also known while no descriptor is free."""
    return _started(pid)


def _started(pid: int) -> int:
    """As `start_ticks`. Raises OSError where no file descriptor is free."""
    fields = _read(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


@cache
def number_here(pid: int, ticks: int) -> int:
    """The number that a process has here: in a container, processes have other numbers than outside.

    pid: its number in its own namespace of process numbers, which is returned if it has ended, or cannot be seen.
    ticks: when it has started.
    """
    if start_ticks(pid) != ticks:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{entry}/status", errors="replace") as status:
                numbers = next((line.split() for line in status if line.startswith("NSpid:")), [])
                if numbers[-1:] == [str(pid)] and start_ticks(int(entry)) == ticks:
                    return int(entry)
    return pid


def lives(pid: int, ticks: int) -> bool:
    """Is the process of this user that has started at this time still there? If no descriptor is free to look at its
    start time, another process with its number counts, too.
    """
    with suppress(OSError):
        return _started(pid) == ticks
    try:
        os.kill(pid, 0)
        read_word(pid, 0)  # this finds also a process that has ended, and whose parent has not asked for its status
    except (ProcessLookupError, PermissionError):
        return False
    return True


def parent(pid: int) -> int:
    """The process that has started this one, or has taken it over; 0 if there is none."""
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def watch_process(pid: int, ticks: int) -> int | None:
    """A file descriptor for `has_ended`; None if that process has ended. Raises OSError where none is free."""
    fill_standard_streams()
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NONE:
            return None
        raise
    try:
        if _started(pid) == ticks:
            return fd
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def has_ended(fd: int) -> bool:
    """Whether the process has ended."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def is_ending(pid: int) -> bool:
    """Has the process ended, or does it end just now? Its descriptors are closed after it has begun to."""
    fields = _fields(pid)
    return not fields or bool(int(fields[6]) & _EXITING)


def exit_status(pid: int, ticks: int, fd: int | None) -> int | None:
    """The wait status of a process that has ended, also of one that is no child of this one; None if unknown.

    As long as its parent has not asked, /proc has it; afterwards the pidfd, from Linux 6.15 on.
    """
    fields = _fields(pid)
    if fields and fields[0] == "Z" and int(fields[19]) == ticks:
        return int(fields[-1])
    if fd is not None:
        info = bytearray(_INFO.pack(_INFO_EXIT, 0))
        with suppress(OSError):  # Linux does not know this request
            fcntl.ioctl(fd, _GET_INFO, info)
            mask, status = _INFO.unpack(info)
            return int(status) if mask & _INFO_EXIT else None
    return None


def ending_in_words(status: int) -> str:
    """What a wait status says, as the end of the sentence "rank 2 ..."."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with code {code}"
    import signal  # which few processes need, and which makes several enumerations

    names = {int(known): known.name for known in signal.Signals}
    return f"was killed by signal {-code} ({names.get(-code, 'real-time')})"


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on, which is the third; none if there is no such process."""
    with suppress(OSError):
        return _read(pid)
    return []


def _read(pid: int) -> list[str]:
    """As `_fields`. Raises OSError where no file descriptor is free."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as stat:
            # The name, in parentheses, may contain spaces.
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


_LIBC = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    """Linux's iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


def may_read(pid: int, ticks: int) -> bool:
    """May this process read the memory of the one that has started at this time? No process has memory at address 0:
    the system says so, or that it forbids it.
    """
    if start_ticks(pid) != ticks:
        return False
    with suppress(ProcessLookupError):
        read_word(pid, 0)
        return ctypes.get_errno() == errno.EFAULT
    return False


def read_word(pid: int, address: int) -> int | None:
    """The 64-bit word at an address in the memory of a process; None if this process may not, or cannot, read it.

    Raises ProcessLookupError if there is no such process, or it is ending.
    """
    word = ctypes.c_int64()
    here, there = _Vector(ctypes.addressof(word), 8), _Vector(address, 8)
    args = ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0)
    if _LIBC.process_vm_readv(pid, *args) == 8:
        return word.value
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError
    return None
