"""A code image: machine code that needs no linker. It is copied to memory, and a table of addresses is filled in.

`make_image` makes one of the object file of a function, once: all distances between the parts of the code are known
then. What is not known before the code runs are addresses of functions outside, such as `memcpy`; the code reads these
from a table, with one word for each. `load` maps memory, copies, fills the table and makes the code executable: some
ten microseconds. No page is ever writable and executable. To link the same units by LLVM takes each process a tenth of
a second of processor time and 46 MiB (AMD EPYC, November 2026).

    head     magic, where the function begins, where the data begin, sizes of memory and names, where the table is
    names    of the functions outside, in the order of the table, each with a zero byte behind it
    memory   code, whose pages can be executed, and not written to; from the next page on constants and the table, which
             can only be read
"""

import ctypes
import mmap
import os
import struct
from functools import cache

HEAD = struct.Struct("<8s5I")
MAGIC = b"unisono1"
PAGE = 4096
"""Bytes of a page, on the processors that this module knows. The distance from code to data depends on it."""


def load(image: bytes) -> int:
    """The address of the function of an image, in memory that stays mapped until the process ends.

    Raises OSError where the system refuses memory that can be executed.
    """
    _, entry, data_at, size, names, table = HEAD.unpack_from(image)
    called = image[HEAD.size : HEAD.size + names].split(b"\0")[:-1]
    # Not `mmap.mmap`: Python would unmap it when it ends, and threads may still be in it.
    memory = _map(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if memory in (None, _FAILED):
        raise _refused("map")
    addresses = struct.pack(f"{len(called)}Q", *map(_outside, called))
    ctypes.memmove(memory, image[HEAD.size + names :], size)
    ctypes.memmove(memory + table, addresses, len(addresses))
    code, data = mmap.PROT_READ | mmap.PROT_EXEC, mmap.PROT_READ
    if _protect(memory, data_at, code) or _protect(memory + data_at, size - data_at, data):
        raise _refused("execute")
    return int(memory + entry)


@cache
def _outside(name: bytes) -> int:
    """The address of a function of Python's or of the C library."""
    return ctypes.cast(ctypes.pythonapi[name.decode()], ctypes.c_void_p).value or 0


def _refused(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{os.strerror(number)}: the system does not let this process {what} memory for its kernels")


_libc = ctypes.CDLL(None, use_errno=True)
_map, _protect = _libc.mmap, _libc.mprotect
_map.restype, _map.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
