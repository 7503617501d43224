"""A first-fit allocator over a rank's heap in the arena, for shared tensors and for the regions of sub-groups.

Peers reach a tensor by its offset, so tensors never move. Allocating reserves memory; freeing a large piece returns its
pages to the system.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import weakref
from collections import deque

import torch

from ..errors import ArgumentError, DTypeError, OutOfMemory
from ..units import format_bytes
from .arena import Arena
from .layout import PAGE

__all__ = ["Heap"]

_ALIGN = 128
_GIVE_BACK = 1 << 20


class Heap:
    """The heap of one rank."""

    def __init__(self, arena: Arena, rank: int) -> None:
        self._arena, self._rank = arena, rank
        self._free: list[tuple[int, int]] = [(0, arena.heap_bytes)]  # (offset, bytes), in order, never adjacent
        self._given: deque[tuple[int, int]] = deque()  # freed, but not yet in _free
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate an uninitialised contiguous tensor that all ranks of the arena can access. Raises OutOfMemory."""
        if any(extent < 0 for extent in shape):
            raise ArgumentError(f"shape: {list(shape)} has a negative extent")
        if str(dtype).startswith(("torch.qint", "torch.quint")):
            raise DTypeError(f"there is no {dtype} tensor in shared memory; use an integer dtype for its bits")
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        nbytes = count * dtype.itemsize
        offset = self._take(-(-nbytes // _ALIGN) * _ALIGN)
        start = self._arena.heap(self._rank) + offset
        memory = (ctypes.c_char * nbytes).from_address(start)
        # The tensor's storage keeps `memory` alive, and that keeps the mapping. When `memory` dies, its bytes are free.
        memory.mapping = self._arena.map  # type: ignore[attr-defined]
        weakref.finalize(memory, self._give, offset, -(-nbytes // _ALIGN) * _ALIGN).atexit = False
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def lend(self, nbytes: int, head: int) -> int:
        """Allocate a region of zeroed pages for a sub-group; return its offset in the arena's mapping.

        Its first `head` bytes are reserved, the others when they are first used. Raises OutOfMemory.
        """
        offset = self._take(nbytes, PAGE, reserve=False)
        try:
            if not self._arena.release_heap(self._rank, offset, nbytes):
                ctypes.memset(self._arena.heap(self._rank) + offset, 0, nbytes)
            self._arena.reserve_heap(self._rank, offset, head)
        except OutOfMemory:
            self._give(offset, nbytes)
            raise
        return self._first + offset

    def take_back(self, start: int, nbytes: int) -> None:
        """Free a region that no rank uses any more."""
        self._give(start - self._first, nbytes)

    @property
    def _first(self) -> int:
        return self._arena.heap(self._rank) - self._arena.base

    def _take(self, nbytes: int, align: int = _ALIGN, *, reserve: bool = True) -> int:
        with self._lock:
            self._merge()
            for k, (offset, size) in enumerate(self._free):
                start = -(-offset // align) * align
                rest = offset + size - (start + nbytes)
                if rest >= 0:
                    if reserve:
                        self._arena.reserve_heap(self._rank, start, nbytes)
                    pieces = (offset, start - offset), (start + nbytes, rest)
                    self._free[k : k + 1] = [piece for piece in pieces if piece[1]]
                    return start
        raise OutOfMemory(
            f"the heap of rank {self._rank} has {format_bytes(self._arena.heap_bytes)} of address space and no room "
            f"for {format_bytes(nbytes)}. Free tensors, or set UNISONO_HEAP_BYTES before the group is made."
        )

    def _give(self, offset: int, nbytes: int) -> None:
        """Free a piece. Takes no lock, because the garbage collector may call this anywhere, even within `_take`."""
        if os.getpid() != self._owner:
            return  # a forked child drops its copy of the tensor; the parent still has it
        if nbytes >= _GIVE_BACK:
            first, end = -(-offset // PAGE) * PAGE, (offset + nbytes) // PAGE * PAGE
            self._arena.release_heap(self._rank, first, end - first)
        self._given.append((offset, nbytes))

    def _merge(self) -> None:
        spans = list(self._free)
        while self._given:
            spans.append(self._given.popleft())
        self._free = []
        for start, size in sorted(spans):
            last, length = self._free[-1] if self._free else (-1, 0)
            if last + length == start:
                self._free[-1] = (last, length + size)
            else:
                self._free.append((start, size))
