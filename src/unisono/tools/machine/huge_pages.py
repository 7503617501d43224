"""What huge pages would save here: copies in shared memory are timed with them and without."""

from __future__ import annotations

import mmap
import os
import time

import numpy as np

_NBYTES, _COPIES = 16 << 20, 16
_HUGE, _COLLAPSE = 2 << 20, 25  # bytes of a huge page; MADV_COLLAPSE of linux/mman.h


def huge_gain() -> float:
    """The share of their time that copies in shared memory save on huge pages; 0 if this system cannot try them.

    Three turns of four save at least this share. So other programs that disturb some turns do not raise it.
    """
    try:
        with open(os.memfd_create("unisono probe"), "wb") as file:
            file.truncate(4 * _NBYTES + _HUGE)
            begin = np.frombuffer(mmap.mmap(file.fileno(), 2 * _NBYTES), np.uint8).ctypes.data % _HUGE
            # The kernel puts each map at the same distance from the border of a huge page, so place by offset.
            huge, plain = (mmap.mmap(file.fileno(), 2 * _NBYTES, offset=begin + at) for at in (0, 2 * _NBYTES))
            huge.madvise(_COLLAPSE)
    except OSError:  # before Linux 6.1
        return 0.0
    ratios = [_copy_s(huge) / _copy_s(plain) for _ in range(1 + _COPIES)][1:]
    return max(0.0, 1 - sorted(ratios)[3 * _COPIES // 4])


def _copy_s(memory: mmap.mmap) -> float:
    halves = np.frombuffer(memory, np.uint8).reshape(2, -1)
    begin = time.perf_counter()
    halves[1] = halves[0]
    return time.perf_counter() - begin
