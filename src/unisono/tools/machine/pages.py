"""How fast one process copies in shared memory: on small pages, and on huge ones."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from typing import NamedTuple

_COPY = 16 << 20
_HUGE_PAGE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE of linux/mman.h, from 6.1 on
_TURNS = 16
_NOTHING = 0  # PROT_NONE
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_FIXED = mmap.MAP_SHARED | 0x10
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t


class CopyTimes(NamedTuple):
    """nbytes: of a copy. seconds: what it takes, at best. gain: the share of the time that huge pages save; None where
    the system has none.
    """

    nbytes: int
    seconds: float
    gain: float | None


def time_copies() -> CopyTimes:
    """Copy 16 MiB some times within shared memory, on pages of both sizes in turns. Raises OSError without memory."""
    size = 2 * (2 * _COPY + _HUGE_PAGE)
    fd = os.memfd_create("unisono probe", os.MFD_CLOEXEC)
    space = 0
    try:
        os.posix_fallocate(fd, 0, 4 * _COPY)
        space = _map(None, size, _NOTHING, _RESERVED, -1)
        plain = -(-space // _HUGE_PAGE) * _HUGE_PAGE  # where a huge page may begin
        _map(plain, 4 * _COPY, mmap.PROT_READ | mmap.PROT_WRITE, _FIXED, fd)
        huge = plain + 2 * _COPY
        collapsed = _LIBC.madvise(ctypes.c_void_p(huge), ctypes.c_size_t(2 * _COPY), _COLLAPSE) == 0
        places = (plain, huge) if collapsed else (plain,)
        times = [[_copy_s(place) for place in places] for _ in range(_TURNS)]
        best = min(turn[0] for turn in times)
        return CopyTimes(_COPY, best, share_saved(times) if collapsed else None)
    finally:
        if space:
            _LIBC.munmap(space, size)
        os.close(fd)


def share_saved(times: Sequence[Sequence[float]]) -> float:
    """The share of the time that the second way saves, in three turns of four. times: seconds of both, by turn.

    Other programs may run in any of the turns, but not in so many of them on one side only.
    """
    ratios = sorted(second / first for first, second in times)
    return max(0.0, 1 - ratios[3 * len(ratios) // 4])


def _copy_s(place: int) -> float:
    begin = time.perf_counter()
    ctypes.memmove(place + _COPY, place, _COPY)
    return time.perf_counter() - begin


def _map(place: int | None, nbytes: int, protection: int, flags: int, fd: int) -> int:
    found = _LIBC.mmap(place, nbytes, protection, flags, fd, 0)
    if found in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return int(found)
