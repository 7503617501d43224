"""May this process read the memory of another one? Linux asks as it does for a debugger.

It may where both belong to one user, unless Yama, a filter for system calls or the other process forbids it.
"""

from __future__ import annotations

import ctypes
import errno

_LIBC = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    """Linux's iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_word(pid: int, address: int) -> int | None:
    """The 64-bit word at an address in the memory of a process; None if this process may not, or cannot, read it.

    Raises ProcessLookupError if there is no such process, or it is ending.
    """
    if not hasattr(_LIBC, "process_vm_readv"):
        return None
    word = ctypes.c_int64()
    here, there = _Vector(ctypes.addressof(word), 8), _Vector(address, 8)
    args = ctypes.byref(here), ctypes.c_ulong(1), ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0)
    if _LIBC.process_vm_readv(pid, *args) == 8:
        return word.value
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError
    return None
