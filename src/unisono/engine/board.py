"""A page per rank for words to its peers: who it is, that it is gone, what it called, why it gave up.

Only slow paths read and write here. A field is a sequence number, a length and text; the number is written last, so
that a reader who sees it sees the text.
"""

from __future__ import annotations

import struct

__all__ = ["BOARD_BYTES", "Board"]

BOARD_BYTES = 4096
_PID, _LET_GO, _GONE, _CALLS, _GAVE_UP = 0, 8, 64, (1088, 2112), 3136
_FIELD = BOARD_BYTES - _GAVE_UP
_HEAD = struct.Struct("<QI")


class Board:
    """The board of one rank, as its owner or a peer sees it."""

    def __init__(self, page: memoryview) -> None:
        self._page = page

    @property
    def pid(self) -> int:
        """The process id of the rank; 0 before it has come."""
        return int(struct.unpack_from("<Q", self._page, _PID)[0])

    @pid.setter
    def pid(self, pid: int) -> None:
        struct.pack_into("<Q", self._page, _PID, pid)

    @property
    def let_go(self) -> bool:
        """Does the rank, gone from a sub-group, hold nothing more that its peers could reach?"""
        return bool(struct.unpack_from("<Q", self._page, _LET_GO)[0])

    def set_let_go(self) -> None:
        """This rank holds nothing more for its peers; it does not look here again."""
        struct.pack_into("<Q", self._page, _LET_GO, 1)

    def set_gone(self, how: str) -> None:
        """The rank will not come any more; the first reason stands."""
        if not self.gone:
            self._write(_GONE, 1, how)

    def set_back(self) -> None:
        """The rank takes part again."""
        self._write(_GONE, 0, "")

    @property
    def gone(self) -> str:
        """Why the rank is gone, or an empty string."""
        return self._read(_GONE, 1)

    def set_call(self, number: int, call: str, where: str) -> None:
        """What the rank calls as its call of this number, and from which line; kept until two calls later."""
        self._write(_CALLS[number & 1], number, f"{call}\n{where}")

    def call(self, number: int) -> tuple[str, str] | None:
        """(call, where) of the call of this number, or None if it is not there (yet)."""
        text = self._read(_CALLS[number & 1], number)
        if not text:
            return None
        call, _, where = text.partition("\n")
        return call, where

    def set_gave_up(self, number: int, reason: str) -> None:
        """The rank gave up its call of this number."""
        self._write(_GAVE_UP, number, reason)

    @property
    def gave_up(self) -> tuple[int, str]:
        """(number of the call, reason), or (0, "")."""
        number = int(_HEAD.unpack_from(self._page, _GAVE_UP)[0])
        return number, self._read(_GAVE_UP, number) if number else ""

    def _write(self, at: int, number: int, text: str) -> None:
        data = text.encode()[: _FIELD - _HEAD.size]
        _HEAD.pack_into(self._page, at, 0, len(data))
        self._page[at + _HEAD.size : at + _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._page, at, number, len(data))

    def _read(self, at: int, number: int) -> str:
        seen, length = _HEAD.unpack_from(self._page, at)
        if seen != number or not number:
            return ""
        return bytes(self._page[at + _HEAD.size : at + _HEAD.size + length]).decode(errors="replace")
