"""A ring in shared memory: the bytes that one rank sends to another, written by one process and read by the other.

    bytes written so far, capacity | bytes read so far | the bytes of the last frames

A frame is a header (the words of FrameWord, then the extents of the shape) and a payload, padded to a cache line. A
frame may be longer than the ring: it is written while it is read. Each side keeps an end: a few private words, of which
the last are the header of the frame that it is writing or reading. Both counts only grow, each has one writer, and
it publishes by them what it has written or what may be overwritten. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from ..atomics import load, load_acquire, memcpy, now_ns, store, store_release
from ..compiled import compiled, entry_point

__all__ = ["CAPACITY", "DATA", "END_WORDS", "READ", "WRITTEN", "EndWord", "FrameWord", "Kernels", "kernels"]

WRITTEN, CAPACITY, READ, DATA = 0, 8, 128, 256
"""Where the words and the bytes of a ring are: each count has a pair of cache lines of its own. The capacity is a power
of two."""


class EndWord(IntEnum):
    """The words of an end."""

    RING = 0  # address
    AT = 1  # bytes of the ring that this side is through with: written, or read
    SEEN = 2  # how far the reader was when the writer last looked
    DONE = 3  # bytes of the payload that are written, or read; -1 between two frames
    HEADER = 8


class FrameWord(IntEnum):
    """The words of a header."""

    BYTES = 0  # of the payload
    TAG = 1
    STAMP = 2  # when it was written, in nanoseconds of the clock that all processes share
    KIND = 3  # code of the dtype << 8 | number of dimensions
    SHAPE = 4


END_WORDS = int(EndWord.HEADER) + int(FrameWord.SHAPE) + 64
"""torch's tensors have up to 64 dimensions."""

# Numba takes module constants as literals, but not members of an enumeration.
_RING, _AT, _SEEN, _DONE, _HEADER = (8 * int(word) for word in EndWord)
_BYTES, _STAMP, _KIND, _SHAPE = (
    8 * int(word) for word in (FrameWord.BYTES, FrameWord.STAMP, FrameWord.KIND, FrameWord.SHAPE)
)
_LINE = 64
_PIECE = 64 << 10  # so much is published at a time: the reader copies one piece while the writer copies the next
_TURN = 4 << 20  # so much is moved at most before Python can see a signal


@compiled
def _put(end, payload):  # type: ignore[no-untyped-def]
    """Write what there is room for of the frame whose header is in the end; 1 when all of it is written."""
    ring, at, done = load(end + _RING), load(end + _AT), load(end + _DONE)
    capacity, nbytes, header = load(ring + CAPACITY), load(end + _HEADER + _BYTES), end + _HEADER
    mask = capacity - 1
    read = load_acquire(ring + READ)
    if done < 0:
        size = _SHAPE + 8 * (load(header + _KIND) & 0xFF)
        if capacity - (at - read) < size:
            store_release(end + _SEEN, read)
            return 0
        store(header + _STAMP, now_ns())
        for k in range(0, size, 8):
            store(ring + DATA + ((at + k) & mask), load(header + k))
        at += size
        done = 0
    most = done + _TURN
    while True:
        n = min(nbytes - done, capacity - (at - read), capacity - (at & mask), _PIECE)
        if n > 0:
            memcpy(ring + DATA + (at & mask), payload + done, n)
            at += n
            done += n
        if done == nbytes:
            at = (at + _LINE - 1) // _LINE * _LINE
            store(end + _AT, at)
            store(end + _DONE, -1)
            store_release(ring + WRITTEN, at)
            return 1
        store_release(ring + WRITTEN, at)
        if n <= 0 or done >= most:
            now = load_acquire(ring + READ)
            if now == read or done >= most:
                store(end + _AT, at)
                store(end + _DONE, done)
                # What the reader has read is no news, but that there is more to do is.
                store_release(end + _SEEN, read if now == read and n <= 0 else -1)
                return 0
            read = now


@compiled
def _begin(end):  # type: ignore[no-untyped-def]
    """Have the header of the next frame in the end; 0 while there is none."""
    if load(end + _DONE) >= 0:
        return 1
    ring, at = load(end + _RING), load(end + _AT)
    if load_acquire(ring + WRITTEN) == at:
        return 0
    mask, header = load(ring + CAPACITY) - 1, end + _HEADER
    for k in range(0, _SHAPE, 8):
        store(header + k, load(ring + DATA + ((at + k) & mask)))
    size = _SHAPE + 8 * (load(header + _KIND) & 0xFF)
    for k in range(_SHAPE, size, 8):
        store(header + k, load(ring + DATA + ((at + k) & mask)))
    store_release(end + _AT, at + size)
    store(end + _DONE, 0)
    return 1


@compiled
def _fetch(end, target):  # type: ignore[no-untyped-def]
    """Read what has come of the frame's payload to an address, or drop it at address 0; 1 when it is complete."""
    ring, at, done = load(end + _RING), load(end + _AT), load(end + _DONE)
    capacity, nbytes = load(ring + CAPACITY), load(end + _HEADER + _BYTES)
    mask, most = capacity - 1, done + _TURN
    while True:
        come = load_acquire(ring + WRITTEN) - at
        n = min(nbytes - done, come, capacity - (at & mask), _PIECE)
        if n > 0:
            if target != 0:
                memcpy(target + done, ring + DATA + (at & mask), n)
            at += n
            done += n
        if done == nbytes:
            at = (at + _LINE - 1) // _LINE * _LINE
            store_release(end + _AT, at)
            store(end + _DONE, -1)
            store_release(ring + READ, at)
            return 1
        store_release(ring + READ, at)
        if n <= 0 or done >= most:
            store_release(end + _AT, at)
            store(end + _DONE, done)
            return 0


@compiled
def _publish(address, word):  # type: ignore[no-untyped-def]
    store_release(address, word)
    return 0


class Kernels(NamedTuple):
    """The compiled functions above; all arguments and results are integers."""

    put: Callable[[int, int], int]
    begin: Callable[[int], int]
    fetch: Callable[[int, int], int]
    publish: Callable[[int, int], int]


@cache
def kernels() -> Kernels:
    """Compile them, or load them from disk."""
    return Kernels(entry_point(_put), entry_point(_begin), entry_point(_fetch), entry_point(_publish))
