"""Where a rank has lent memory to sub-groups: one page of the arena per rank, by the key of each group.

Members of a group look here, and at no store, because only ranks of the world can write here. An entry has one writer.
It is whole once its check fits: so a reader neither needs a lock nor believes what is half written.
"""

from __future__ import annotations

import struct

from ...base.records import digest

KEY_BYTES = 16
_ENTRY = struct.Struct(f"<{KEY_BYTES}sQQ")
"""The key of the group, where its region begins, and a check of both."""

ENTRIES = 4096 // _ENTRY.size
NO_ROOM = 0
"""In place of an offset: the group cannot be made. No region begins there, because the arena's header does."""


class RegionTable:
    """The table of one rank. The owner writes it, its peers read it."""

    def __init__(self, page: memoryview) -> None:
        self._page = page

    def write(self, entry: int, key: bytes, start: int) -> None:
        """Say that the region of the group with this key begins at this offset."""
        _ENTRY.pack_into(self._page, entry * _ENTRY.size, key, start, digest(key, start))

    def clear(self) -> None:
        """Say nothing any more."""
        self._page[:] = bytes(len(self._page))

    def find(self, key: bytes) -> int | None:
        """Where the region of the group with this key begins, or NO_ROOM; None while its owner has not said it."""
        for written, start, check in _ENTRY.iter_unpack(bytes(self._page)):
            if written == key and check == digest(key, start):
                return int(start)
        return None
