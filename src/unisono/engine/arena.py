"""The shared memory of a group: one memfd, mapped by every rank, never named in a file system.

    header | what `layout` says | heap of rank 0, 1, ...

The heaps hold the tensors of `unisono.empty`, and what `sub_arena` lends to sub-groups. Pages take memory when they are
reserved, which raises OutOfMemory where there is too little; nothing is left after the last process has gone, however
it went.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from pathlib import Path

from ..config import Config
from ..errors import ArgumentError, OutOfMemory
from ..units import format_bytes
from .board import MAX_RANKS
from .layout import PAGE, Layout, whole_pages

__all__ = ["Arena"]

_MAGIC = 0x6F6E6F73696E75
_HEADER = struct.Struct("<QQQQ")
_LIBC = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of linux/falloc.h


class Arena(Layout):
    """The mapped shared memory of `size` ranks."""

    def __init__(self, fd: int, size: int, half: int, heap: int) -> None:
        super().__init__(size, half, PAGE)
        self.fd, self.heap_bytes, self.neighbours = fd, heap, size
        self.heap_stride = whole_pages(heap) + 17 * PAGE
        self.bytes = self.end + size * self.heap_stride
        self._staged = False

    @classmethod
    def create(cls, size: int, config: Config | None = None) -> Arena:
        """New shared memory for `size` ranks; hand `fd` to the processes that take part."""
        if not 1 <= size <= MAX_RANKS:
            raise ArgumentError(f"a group of one host has 1 to {MAX_RANKS} ranks, not {size}")
        if not hasattr(os, "memfd_create"):
            raise ArgumentError("shared memory without a name needs Linux (memfd_create); this system has none")
        config = config or Config.from_env()
        heap = config.heap_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        # Two segments of every rank's largest staging need, and a page for ragged ends.
        arena = cls(os.memfd_create("unisono", os.MFD_CLOEXEC), size, 4 * config.segment_bytes, heap)
        os.ftruncate(arena.fd, arena.bytes)
        arena._reserve(0, arena.start + arena.head)
        os.pwrite(arena.fd, _HEADER.pack(_MAGIC, size, arena.half, heap), 0)
        arena._map()
        return arena

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """The arena behind a file descriptor that another process made."""
        magic, size, half, heap = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        if magic != _MAGIC:
            raise ArgumentError(f"file descriptor {fd} is no arena")
        arena = cls(fd, size, half, heap)
        arena._map()
        return arena

    def _map(self) -> None:
        self.map = mmap.mmap(self.fd, self.bytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0x4000))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.heaps = range(self.base + self.end, self.base + self.bytes, self.heap_stride)

    def reserve_staging(self, rank: int) -> None:
        """Take the memory of a rank's staging area. Once; raises OutOfMemory."""
        if not self._staged:
            self._reserve(self.stage(rank) - self.base, self.stage_stride)
            self._staged = True

    def reserve_heap(self, rank: int, offset: int, nbytes: int) -> None:
        """Take memory for nbytes at an offset in a rank's heap. Raises OutOfMemory."""
        self._reserve(self.heap(rank) - self.base + offset, nbytes)

    def release_heap(self, rank: int, offset: int, nbytes: int) -> bool:
        """Give whole pages of a rank's heap back to the system: they read zero from then on. Has it taken them?"""
        if self.fd < 0:
            return False
        at = self.heap(rank) - self.base + offset
        return bool(_LIBC.fallocate(self.fd, _PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(nbytes)) == 0)

    def close(self) -> None:
        """Give up the file descriptor. The mapping goes when the last tensor in it has gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.map = None

    def _reserve(self, offset: int, nbytes: int) -> None:
        free = _available_bytes()
        refused: OSError | None = None
        if nbytes <= free:
            try:
                os.posix_fallocate(self.fd, offset, nbytes)
            except OSError as error:
                refused = error
            else:
                return
        raise OutOfMemory(
            f"{format_bytes(nbytes)} of shared memory are not there: {format_bytes(free)} are free on this host. "
            "Use smaller tensors, fewer ranks, or free memory."
        ) from refused


def _available_bytes() -> int:
    """What the host and this process's control group still have, by their own account."""
    free = 1 << 62
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used))
