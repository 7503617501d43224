"""The shared memory of a world: one memfd, which every rank maps. It has no name in a file system.

    header | whereabouts of rank 0, 1, ... | what `layout` says | heap of rank 0, 1, ...

The heaps hold the tensors of `unisono.empty` and the memory of sub-groups (`sub_arena`). A page takes memory when it is
reserved; that raises OutOfMemory if there is too little. The memory is free again when the last process has ended.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..config import SHAPING, Config
from ..errors import ArgumentError, OutOfMemory
from ..units import format_bytes
from .board import MAX_RANKS
from .layout import PAGE, Layout, whole_pages
from .whereabouts import WHEREABOUTS_BYTES, Whereabouts

__all__ = ["Arena"]

_MAGIC = 0x6F6E6F73696E75
_HEADER = struct.Struct(f"<4Q{len(SHAPING)}Q")
_LIBC = ctypes.CDLL(None, use_errno=True)
_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of linux/falloc.h


class Arena(Layout):
    """The mapped shared memory of `size` ranks. shape: the settings in SHAPING, which it has for all of them."""

    def __init__(self, fd: int, size: int, half: int, heap: int, shape: Sequence[int]) -> None:
        super().__init__(size, half, PAGE + size * WHEREABOUTS_BYTES)
        self.shape: Mapping[str, int] = dict(zip(SHAPING, shape, strict=True))
        self.fd, self.heap_bytes, self.neighbours = fd, heap, size
        self.heap_stride = whole_pages(heap) + 17 * PAGE
        self.bytes = self.end + size * self.heap_stride
        self.free_bytes = 0
        """The memory that was free on the host when this process last reserved some."""
        self._staged = False

    @classmethod
    def create(cls, size: int, config: Config | None = None) -> Arena:
        """Create shared memory for `size` ranks. Other processes attach it by its `fd`."""
        if not 1 <= size <= MAX_RANKS:
            raise ArgumentError(f"a group of one host has 1 to {MAX_RANKS} ranks, not {size}")
        if not hasattr(os, "memfd_create"):
            raise ArgumentError("shared memory without a name needs Linux (memfd_create); this system has none")
        config = config or Config.from_env()
        heap = config.heap_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        # Two segments of every rank's largest staging need, and a page for ragged ends.
        shape = [getattr(config, name) for name in SHAPING]
        arena = cls(os.memfd_create("unisono", os.MFD_CLOEXEC), size, 4 * config.segment_bytes, heap, shape)
        os.ftruncate(arena.fd, arena.bytes)
        arena._reserve(0, arena.start + arena.head)
        os.pwrite(arena.fd, _HEADER.pack(_MAGIC, size, arena.half, heap, *shape), 0)
        arena._map()
        return arena

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Map the arena that another process has created."""
        magic, size, half, heap, *shape = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        if magic != _MAGIC:
            raise ArgumentError(f"file descriptor {fd} is no arena")
        arena = cls(fd, size, half, heap, shape)
        arena._map()
        return arena

    def _map(self) -> None:
        self.map = mmap.mmap(self.fd, self.bytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_NORESERVE", 0x4000))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.heaps = range(self.base + self.end, self.base + self.bytes, self.heap_stride)

    def whereabouts(self, rank: int) -> Whereabouts:
        """Where a rank is now, as far as it has said so."""
        if self.map is None:
            raise ArgumentError("this arena has been closed")
        at = PAGE + rank * WHEREABOUTS_BYTES
        return Whereabouts(memoryview(self.map)[at : at + WHEREABOUTS_BYTES])

    def reserve_staging(self, rank: int) -> None:
        """Reserve a rank's staging area, at the first call only. Raises OutOfMemory."""
        if not self._staged:
            self._reserve(self.stage(rank) - self.base, self.stage_stride)
            self._staged = True

    def reserve_heap(self, rank: int, offset: int, nbytes: int) -> None:
        """Reserve nbytes at an offset in a rank's heap. Raises OutOfMemory."""
        self._reserve(self.heap(rank) - self.base + offset, nbytes)

    def release_heap(self, rank: int, offset: int, nbytes: int) -> bool:
        """Return whole pages of a rank's heap to the system; they are zero afterwards. False if it refuses."""
        if self.fd < 0:
            return False
        at = self.heap(rank) - self.base + offset
        return bool(_LIBC.fallocate(self.fd, _PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(nbytes)) == 0)

    def close(self) -> None:
        """Close the file descriptor. The mapping ends with the last tensor in it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.map = None

    def _reserve(self, offset: int, nbytes: int) -> None:
        self.free_bytes = free = _available_bytes()
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
    """The free bytes of the host or of this process's control group, whichever has less."""
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
