"""A first-fit allocator over a rank's heap in the arena, for shared tensors and for the regions of sub-groups.

Peers reach a tensor by its offset, so tensors never move. Allocating reserves memory, which takes far longer than using
reserved memory again. So freed pieces are kept, with their pages, for tensors of the same size: training frees and
allocates the same sizes in every step. A rank keeps at most an eighth of its heap. All ranks together keep at most an
eighth of the memory that was free on the host when memory was last reserved. The pages of the oldest kept piece go back
to the system first.
"""

import ctypes
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from ...base.errors import ArgumentError, DTypeError, OutOfMemory
from ...base.units import format_bytes
from ..process.nested import check_nested, holds
from .arena import Arena
from .board import PAGE

_ALIGN = 128
_MOST_KEPT = 256
_SHARE = 8


class Heap:
    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena, self.rank = arena, rank
        self._first = arena.heap(rank) - arena.base
        self._lives: dict[int, weakref.ref[memoryview]] = {}  # by offset: the memory of tensors
        self._free: list[tuple[int, int]] = [(0, arena.heap_bytes)]  # (offset, bytes), in order, never adjacent
        self._given: deque[tuple[int, int, bool]] = deque()  # freed: (offset, bytes, has it all its pages?)
        self._kept: list[tuple[int, int]] = []  # (offset, bytes), with their pages, as they were freed
        self._idle = 0  # the bytes of _kept
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate an uninitialised contiguous tensor that all ranks of the arena can access. Raises OutOfMemory."""
        if any(extent < 0 for extent in shape):
            raise ArgumentError(f"shape: got {list(shape)}, which has a negative extent")
        if str(dtype).startswith(("torch.qint", "torch.quint")):
            raise DTypeError(
                f"dtype: got {dtype}, which cannot be in shared memory. Use an integer dtype for the bits."
            )
        count = math.prod(shape)
        return self.flat(count, dtype).view(shape) if count else torch.empty(shape, dtype=dtype, device="cpu")

    def flat(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Allocate an uninitialised flat tensor, not an empty one, as `empty` does. Raises OutOfMemory."""
        nbytes = count * dtype.itemsize
        whole = -(-nbytes // _ALIGN) * _ALIGN
        offset = self._tensor(whole)
        start = self._first + offset
        # The tensor's storage keeps `memory` alive, which keeps the mapping. When `memory` dies, its bytes are free.
        memory = memoryview(self._arena.map)[start : start + nbytes]  # type: ignore[arg-type]  # it is open
        self._lives[offset] = weakref.ref(memory, partial(self._died, offset, whole))
        return torch.frombuffer(memory, dtype=dtype)

    @holds("self")
    def lend(self, nbytes: int, head: int) -> int:
        """Allocate a region of zeroed pages for a sub-group; return its offset in the arena's mapping.

        Its first `head` bytes are reserved, the others when they are first used. Raises OutOfMemory.
        """
        self._check_nested()
        with self._lock:
            offset = self._take(nbytes, PAGE)
        try:
            if not self._arena.release_heap(self.rank, offset, nbytes):
                ctypes.memset(self._arena.heap(self.rank) + offset, 0, nbytes)
            self._arena.reserve_heap(self.rank, offset, head)
        except OutOfMemory:
            self._give(offset, nbytes, False)
            raise
        return self._first + offset

    def take_back(self, start: int, nbytes: int) -> None:
        """Free a region that no rank uses any more."""
        self._give(start - self._first, nbytes, False)

    def _check_nested(self) -> None:
        if self._lock.locked():
            check_nested(self, f"the heap of rank {self.rank}")

    @holds("self")
    def _tensor(self, nbytes: int) -> int:
        """Allocate a piece with all its pages; return its offset."""
        self._check_nested()
        with self._lock:
            self._sort()
            for k in reversed(range(len(self._kept))):
                if self._kept[k][1] == nbytes:
                    self._idle -= nbytes
                    return self._kept.pop(k)[0]
            offset = self._take(nbytes)
            try:
                self._arena.reserve_heap(self.rank, offset, nbytes)
            except OutOfMemory:
                self._drop(0)  # perhaps these pages are enough
                try:
                    self._arena.reserve_heap(self.rank, offset, nbytes)
                except OutOfMemory:
                    self._merge([(offset, nbytes)])
                    raise
            return offset

    def _take(self, nbytes: int, align: int = _ALIGN) -> int:
        """Allocate address space: the first piece that is large enough. Needs the lock."""
        self._sort()
        for _ in range(2):
            for k, (offset, size) in enumerate(self._free):
                start = -(-offset // align) * align
                rest = offset + size - (start + nbytes)
                if rest >= 0:
                    pieces = (offset, start - offset), (start + nbytes, rest)
                    self._free[k : k + 1] = [piece for piece in pieces if piece[1]]
                    return start
            self._drop(0)
        self._arena.check_free(nbytes)  # beyond that a larger heap would not help
        most = max((size for _, size in self._free), default=0)
        raise OutOfMemory(
            f"the heap of rank {self.rank} is full: {format_bytes(nbytes)} needed, {format_bytes(most)} free in one "
            f"piece, of {format_bytes(self._arena.heap_bytes)}. Free tensors, or set UNISONO_HEAP_BYTES to more "
            "before the group is made."
        )

    def _died(self, offset: int, nbytes: int, _: object, *, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        """Free the piece of a tensor, but not when the program ends: modules may be gone then."""
        if not at_exit():
            self._lives.pop(offset, None)
            self._give(offset, nbytes, True)

    def _give(self, offset: int, nbytes: int, paged: bool) -> None:
        """Free a piece. Does not wait for the lock: the garbage collector may call this anywhere, even in `_take`."""
        if os.getpid() != self._owner:
            return  # a forked child drops its copy of the tensor; the parent still has it
        self._given.append((offset, nbytes, paged))
        if self._lock.acquire(blocking=False):  # else the next call sorts it in
            try:
                self._sort()
            finally:
                self._lock.release()

    def _sort(self) -> None:
        """Sort in the pieces that were freed. Needs the lock."""
        if not self._given:
            return
        pieces = []
        while self._given:
            offset, nbytes, paged = self._given.popleft()
            if paged:
                self._kept.append((offset, nbytes))
                self._idle += nbytes
            else:
                self._release(offset, nbytes)
                pieces.append((offset, nbytes))
        self._merge(pieces)
        arena = self._arena
        self._drop(min(arena.heap_bytes, arena.free_bytes // arena.neighbours) // _SHARE)

    def _drop(self, most: int) -> None:
        """Return the pages of kept pieces to the system, down to `most` kept bytes. Needs the lock."""
        pieces = []
        while self._kept and (self._idle > most or len(self._kept) > _MOST_KEPT):
            offset, nbytes = self._kept.pop(0)
            self._idle -= nbytes
            self._release(offset, nbytes)
            pieces.append((offset, nbytes))
        self._merge(pieces)

    def _release(self, offset: int, nbytes: int) -> None:
        """Return the pages that lie in a piece to the system."""
        first, end = -(-offset // PAGE) * PAGE, (offset + nbytes) // PAGE * PAGE
        self._arena.release_heap(self.rank, first, end - first)

    def _merge(self, pieces: list[tuple[int, int]]) -> None:
        if not pieces:
            return
        spans, self._free = sorted(self._free + pieces), []
        for start, size in spans:
            last, length = self._free[-1] if self._free else (-1, 0)
            if last + length == start:
                self._free[-1] = (last, length + size)
            else:
                self._free.append((start, size))
