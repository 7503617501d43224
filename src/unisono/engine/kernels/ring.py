"""Write and read the ring buffer that `ring_buffer` describes."""

from __future__ import annotations

from .atomics import load, load_acquire, memcpy, now_ns, pause, store, store_release
from .compiled import compiled
from .ring_buffer import CAPACITY, DATA, PIECE_BYTES, READ, WRITTEN, CursorWord, HeadWord
from .waiting import publish_and_wake

# Numba takes module constants as literals, but not members of an enumeration.
_RING, _POSITION, _SEEN, _DONE, _PEER, _SPINS, _HEADER = (8 * int(word) for word in CursorWord)
_NBYTES, _TAG, _SENT_NS, _KIND, _SHAPE = (8 * int(word) for word in HeadWord)
_LINE = 64
_UNSEEN = 2
"""A side that has not seen the other one go on looks a quarter as long: the other side may wait for it."""
_MOST_BYTES = 4 << 20
"""Moved in one call at most, so that Python can handle signals in between."""


@compiled
def _changed(address, seen, looks):  # type: ignore[no-untyped-def]
    """The count of the other side, once it is another one than `seen`, or after so many looks."""
    count = load_acquire(address)
    for _ in range(looks):
        if count != seen:
            break
        pause()
        count = load_acquire(address)
    return count


@compiled
def write(cursor, payload):  # type: ignore[no-untyped-def]
    """Write as much of the frame as there is room for; 1 when it is complete. The cursor holds its header."""
    ring, position, done = load(cursor + _RING), load(cursor + _POSITION), load(cursor + _DONE)
    capacity, nbytes, header = load(ring + CAPACITY), load(cursor + _HEADER + _NBYTES), cursor + _HEADER
    mask = capacity - 1
    read = load_acquire(ring + READ)
    if done < 0:
        size = _SHAPE + 8 * (load(header + _KIND) & 0xFF)
        if capacity - (position - read) < size:
            store_release(cursor + _SEEN, read)
            return 0
        store(header + _SENT_NS, now_ns())
        for k in range(0, size, 8):
            store(ring + DATA + ((position + k) & mask), load(header + k))
        position += size
        done = 0
    limit, looks = done + _MOST_BYTES, load(cursor + _SPINS) >> _UNSEEN
    while True:
        n = min(nbytes - done, capacity - (position - read), capacity - (position & mask), PIECE_BYTES)
        if n > 0:
            memcpy(ring + DATA + (position & mask), payload + done, n)
            position += n
            done += n
        if done == nbytes:
            position = (position + _LINE - 1) // _LINE * _LINE
            store(cursor + _POSITION, position)
            store(cursor + _DONE, -1)
            publish_and_wake(ring + WRITTEN, position, load(cursor + _PEER))
            return 1
        publish_and_wake(ring + WRITTEN, position, load(cursor + _PEER))
        if n <= 0 or done >= limit:
            now = _changed(ring + READ, read, looks if done < limit else 0)
            if now == read or done >= limit:
                store(cursor + _POSITION, position)
                store(cursor + _DONE, done)
                # The poller calls this writer when READ differs from SEEN; -1: at once, as there is more to write.
                store_release(cursor + _SEEN, read if now == read and n <= 0 else -1)
                return 0
            read, looks = now, load(cursor + _SPINS)


@compiled
def write_whole(cursor, payload, tag):  # type: ignore[no-untyped-def]
    """Write a frame if there is room for all of it, or if it is longer than the ring, of which half is empty: 1.

    Otherwise 0, and nothing is written. 2: the frame has begun, and there was no room for its rest in time; `write`
    goes on with it. The cursor holds its header.
    """
    ring, header = load(cursor + _RING), cursor + _HEADER
    size, capacity = _SHAPE + 8 * (load(header + _KIND) & 0xFF) + load(header + _NBYTES), load(ring + CAPACITY)
    if capacity - (load(cursor + _POSITION) - load_acquire(ring + READ)) < (
        size if size <= capacity else capacity // 2
    ):
        return 0
    store(header + _TAG, tag)
    return 1 if write(cursor, payload) == 1 else 2


@compiled
def read_header(cursor):  # type: ignore[no-untyped-def]
    """Read the header of the next frame into the cursor; 0 while there is none."""
    if load(cursor + _DONE) >= 0:
        return 1
    ring, position = load(cursor + _RING), load(cursor + _POSITION)
    if load_acquire(ring + WRITTEN) == position:
        return 0
    mask, header = load(ring + CAPACITY) - 1, cursor + _HEADER
    for k in range(0, _SHAPE, 8):
        store(header + k, load(ring + DATA + ((position + k) & mask)))
    size = _SHAPE + 8 * (load(header + _KIND) & 0xFF)
    for k in range(_SHAPE, size, 8):
        store(header + k, load(ring + DATA + ((position + k) & mask)))
    store_release(cursor + _POSITION, position + size)
    store(cursor + _DONE, 0)
    return 1


@compiled
def read_payload(cursor, target):  # type: ignore[no-untyped-def]
    """Read the part of the payload that has arrived to an address, or drop it at address 0; 1 when it is complete."""
    ring, position, done = load(cursor + _RING), load(cursor + _POSITION), load(cursor + _DONE)
    capacity, nbytes = load(ring + CAPACITY), load(cursor + _HEADER + _NBYTES)
    mask, limit, looks = capacity - 1, done + _MOST_BYTES, load(cursor + _SPINS) >> _UNSEEN
    written = load_acquire(ring + WRITTEN)
    while True:
        n = min(nbytes - done, written - position, capacity - (position & mask), PIECE_BYTES)
        if n > 0:
            if target != 0:
                memcpy(target + done, ring + DATA + (position & mask), n)
            position += n
            done += n
        if done == nbytes:
            position = (position + _LINE - 1) // _LINE * _LINE
            store_release(cursor + _POSITION, position)
            store(cursor + _DONE, -1)
            publish_and_wake(ring + READ, position, load(cursor + _PEER))
            return 1
        publish_and_wake(ring + READ, position, load(cursor + _PEER))
        if written == position:
            written = _changed(ring + WRITTEN, position, looks if done < limit else 0)
            looks = load(cursor + _SPINS)
        if written == position or done >= limit:
            store_release(cursor + _POSITION, position)
            store(cursor + _DONE, done)
            return 0


@compiled
def read_whole(cursor, target, dtype, nbytes, tag):  # type: ignore[no-untyped-def]
    """Read the next frame, if its header comes soon, with this code of a dtype, payload, and tag: 1. Otherwise 0.

    2: the frame has begun, and its rest has not come in time; `read_payload` goes on with it.
    """
    ring, position = load(cursor + _RING), load(cursor + _POSITION)
    if load(cursor + _DONE) >= 0 or _changed(ring + WRITTEN, position, load(cursor + _SPINS)) == position:
        return 0
    frame, mask = ring + DATA, load(ring + CAPACITY) - 1
    kind = load(frame + ((position + _KIND) & mask))
    if kind >> 8 != dtype or load(frame + ((position + _TAG) & mask)) != tag:
        return 0
    if load(frame + ((position + _NBYTES) & mask)) != nbytes:
        return 0
    read_header(cursor)
    return 1 if read_payload(cursor, target) == 1 else 2
