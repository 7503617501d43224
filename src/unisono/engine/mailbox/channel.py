"""The two ends of a ring buffer: one turns Send requests into bytes, the other turns bytes into Messages."""

import ctypes
from collections import deque

import numpy as np
import torch

from ...base.errors import InternalError
from ..kernels import kernel, ring_buffer
from ..kernels.ring_buffer import CAPACITY, CURSOR_WORDS, DATA, MOST_DIMENSIONS, CursorWord, HeadWord
from ..memory.arena import Layout
from ..memory.heap import Heap
from ..tensors import DTYPE_CODES
from .poller import Watched
from .requests import Message, Send, describe

_DONE = int(CursorWord.DONE)
_TAG = int(HeadWord.TAG)

_RING_BYTES, _LEAST_RING_BYTES = 512 << 10, 32 << 10
"""Powers of two. A ring fits into a second-level cache, and is too small for a heap to give its pages back to the
system: so a message outlives its sender's group."""
BEGUN = 2
"""A part of a message has been moved."""
_MOST_SPINS = 300  # some five microseconds; a side that goes on copies a piece in half of one
_ALL_RINGS_BYTES = 8 << 20  # the most for all rings of a rank, unless each ring has _LEAST_RING_BYTES


def ring_capacity(ranks: int) -> int:
    """The bytes of each ring of a rank: one for each peer to which it sends."""
    capacity = _RING_BYTES
    while capacity > _LEAST_RING_BYTES and capacity * ranks > _ALL_RINGS_BYTES:
        capacity //= 2
    return capacity


def new_ring(heap: Heap, capacity: int) -> torch.Tensor:
    """An empty ring buffer. Raises OutOfMemory."""
    ring = heap.empty((DATA + capacity,), torch.uint8)
    address = ring.data_ptr()
    ctypes.memset(address, 0, DATA)
    ctypes.c_int64.from_address(address + CAPACITY).value = capacity
    return ring


def find_ring(arena: Layout, source: int, rank: int, capacity: int) -> int:
    """The address of the ring from `source` to `rank`, which `source` has published. Raises InternalError if there is
    none.
    """
    offset = ctypes.c_int64.from_address(arena.mail(source, rank)).value - 1
    there: int = arena.heap(source) + offset
    fits = offset >= 0 == offset % 8 and offset + DATA + capacity <= arena.heap_bytes
    if not fits or ctypes.c_int64.from_address(there + CAPACITY).value != capacity:
        raise InternalError(
            f"the messages of rank {source} are not at byte {offset} of its heap, where its board points. A program "
            "has overwritten shared memory, or the ranks run different versions."
        )
    return there


class _Channel:
    """ring: the address of the ring buffer. peer: the address of the word that says that the other side sleeps. spins:
    see `CursorWord`.
    """

    def __init__(self, ring: int, peer: int, spins: int) -> None:
        words = np.zeros(CURSOR_WORDS, np.int64)
        words[CursorWord.RING], words[CursorWord.DONE], words[CursorWord.PEER] = ring, -1, peer
        words[CursorWord.SPINS] = min(spins, _MOST_SPINS)
        self.ring = ring
        self._words, self._header, self._cursor = words.data, words[CursorWord.HEADER :].data, words.ctypes.data

    @property
    def done(self) -> int:
        """The bytes of the current payload that have been written or read; -1 between two frames."""
        done: int = self._words[_DONE]
        return done


class SendChannel(_Channel):
    """The sender's end, with the queue of requests that are not written yet."""

    def __init__(self, ring: int, peer: int, spins: int = 0) -> None:
        super().__init__(ring, peer, spins)
        self._write, self._write_whole = kernel("ring.write"), kernel("ring.write_whole")
        self.queue: deque[Send] = deque()
        self._shape: torch.Size | None = None
        self._dtype = -1

    @property
    def watched(self) -> Watched | None:
        """More room, if it is needed: the reader's count changes then."""
        return (self.ring + ring_buffer.READ, self._cursor + 8 * CursorWord.SEEN, None) if self.queue else None

    def read_answers(self) -> None:
        """The reader's count in the ring is its answer."""

    def write(self, send: Send) -> int:
        """Write as much as fits; 1 when the message is complete."""
        tensor = send.tensor
        if self._words[_DONE] < 0:
            self._describe(DTYPE_CODES[tensor.dtype], tensor.nbytes, tensor.shape)
            self._header[_TAG] = send.tag
        return self._write(self._cursor, tensor.data_ptr())

    def write_whole(self, address: int, dtype: int, nbytes: int, shape: torch.Size, tag: int) -> int:
        """Write a message of a plain tensor at an address, if all of it fits, or it is longer than the ring: 1; or 0.

        BEGUN: its rest found no room in time. dtype: its code.
        """
        if shape != self._shape or dtype != self._dtype:
            if len(shape) > MOST_DIMENSIONS:  # the long way raises
                return 0
            self._describe(dtype, nbytes, shape)
        return self._write_whole(self._cursor, address, tag)

    def _describe(self, dtype: int, nbytes: int, shape: torch.Size) -> None:
        describe(self._header, dtype, nbytes, shape)
        self._shape, self._dtype = shape, dtype


class ReceiveChannel(_Channel):
    """The receiver's end. message: the message that is arriving, or None."""

    def __init__(self, ring: int, source: int, peer: int, spins: int = 0) -> None:
        super().__init__(ring, peer, spins)
        self._read_header, self._read_payload = kernel("ring.read_header"), kernel("ring.read_payload")
        self._read_whole = kernel("ring.read_whole")
        self.source = source
        self.message: Message | None = None

    @property
    def watched(self) -> Watched:
        """More bytes: the writer's count changes then."""
        return self.ring + ring_buffer.WRITTEN, self._cursor + 8 * CursorWord.POSITION, None

    def read_header(self) -> Message | None:
        """The next message, or the one that has begun, without its payload; None while there is none."""
        return Message.told(self._header, self.source) if self._read_header(self._cursor) else None

    def read_payload(self, target: int) -> int:
        """Read arrived bytes to this address, or drop them at address 0; 1 when the message is complete."""
        return self._read_payload(self._cursor, target)

    def read_whole(self, target: int, dtype: int, nbytes: int, tag: int) -> int:
        """Read the next message to an address, if it is there, with this code of a dtype, payload, and tag: 1; or 0.

        BEGUN: its rest has not come in time.
        """
        return self._read_whole(self._cursor, target, dtype, nbytes, tag)
