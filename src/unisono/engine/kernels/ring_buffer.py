"""A ring buffer in shared memory with one writer and one reader, for the messages that one rank sends to another.

    bytes written, capacity | bytes read | data

A message is a frame: a header (HeadWord, then the shape), a payload, and padding up to a cache line. A frame may be
longer than the ring: it is read while it is written. Each side has a cursor: private words (CursorWord), which end with
the header of the present frame. The two counts of bytes only grow, and each has one writer. With a release store of its
count, the writer publishes bytes that may be read, and the reader bytes that may be overwritten. Within a frame, and
before one that is read as a whole, a side looks for some microseconds whether the other side goes on. Apart from that,
no function waits.
"""

from __future__ import annotations

from enum import IntEnum

WRITTEN, CAPACITY, READ, DATA = 0, 8, 128, 256
"""Offsets in a ring, in bytes: each count has a pair of cache lines of its own. The capacity is a power of two."""

PIECE_BYTES = 16 << 10
"""Published at a time: the reader copies one piece while the writer copies the next."""


class CursorWord(IntEnum):
    """The words of a cursor."""

    RING = 0  # address
    POSITION = 1  # bytes of the ring that this side has written, or read
    SEEN = 2  # the reader's count of bytes when the writer last looked
    DONE = 3  # bytes of the payload that are written, or read; -1 between two frames
    PEER = 4  # address of the word that says that the other side sleeps; see kernels/waiting
    SPINS = 5  # how often to look whether the other side goes on within a frame, before a function returns
    HEADER = 8


class HeadWord(IntEnum):
    """The words of a header."""

    NBYTES = 0  # of the payload
    TAG = 1
    SENT_NS = 2  # when the header was written, by the monotonic clock
    KIND = 3  # code of the dtype << 8 | number of dimensions
    SHAPE = 4


def head_bytes(dimensions: int) -> int:
    """The bytes of a frame besides its payload and padding."""
    return 8 * (HeadWord.SHAPE + dimensions)


MOST_DIMENSIONS = 255
"""The most dimensions of a tensor in a message: KIND has eight bits for their number."""

CURSOR_WORDS = int(CursorWord.HEADER) + int(HeadWord.SHAPE) + MOST_DIMENSIONS
