"""A page per rank for what its peers must know: who it is, how it has gone, what it called, what it gave up.

Only slow paths read and write here. A field is a number, a length and bytes; the number is written last, so that a
reader who sees it sees the bytes. What a field holds is a record of `records`, not a sentence.
"""

from __future__ import annotations

import struct

from ..records import CallRecord, Departure, DepartureKind, GivenUp

__all__ = ["BOARD_BYTES", "MAX_RANKS", "Board"]

MAX_RANKS = 1024
"""A bound on the ranks of one host; the control lines and boards of that many are 4 MiB."""

BOARD_BYTES = 4096
_PID, _LET_GO, _GONE, _CALLS, _GAVE_UP = 0, 8, 64, (1088, 2112), 3136
_HEAD = struct.Struct("<QI")
_ROOM = BOARD_BYTES - _GAVE_UP - _HEAD.size
_RANKS = MAX_RANKS // 8


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

    def set_gone(self, how: DepartureKind, words: str) -> None:
        """The rank makes no more calls. The first reason stands."""
        if self.gone is None:
            self._write(_GONE, 1, bytes([how]) + words.encode())

    def set_back(self) -> None:
        """The rank takes part again."""
        self._write(_GONE, 0, b"")

    @property
    def gone(self) -> Departure | None:
        """How the rank has gone, if it has."""
        data = self._read(_GONE, 1)
        return Departure(DepartureKind(data[0]), data[1:].decode(errors="replace")) if data else None

    def set_call(self, number: int, record: CallRecord) -> None:
        """What the rank calls as its call of this number; kept until two calls later."""
        self._write(_CALLS[number & 1], number, record.pack(_ROOM))

    def call(self, number: int) -> CallRecord | None:
        """The call of this number, or None if it is not there (yet)."""
        data = self._read(_CALLS[number & 1], number)
        return CallRecord.unpack(data) if data else None

    def set_gave_up(self, given_up: GivenUp) -> None:
        """The rank gave up a call."""
        blames = sum(1 << rank for rank in given_up.blames).to_bytes(_RANKS, "little")
        self._write(_GAVE_UP, given_up.number, bytes([given_up.late]) + blames + given_up.reason.encode())

    @property
    def gave_up(self) -> GivenUp:
        """The call that the rank gave up; one of number 0 if it gave up none."""
        number = int(_HEAD.unpack_from(self._page, _GAVE_UP)[0])
        data = self._read(_GAVE_UP, number)
        if not data:
            return GivenUp()
        bits = int.from_bytes(data[1 : 1 + _RANKS], "little")
        blames = frozenset(rank for rank in range(MAX_RANKS) if bits >> rank & 1)
        return GivenUp(number, bool(data[0]), blames, data[1 + _RANKS :].decode(errors="replace"))

    def _write(self, at: int, number: int, data: bytes) -> None:
        data = data[:_ROOM]
        _HEAD.pack_into(self._page, at, 0, len(data))
        self._page[at + _HEAD.size : at + _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._page, at, number, len(data))

    def _read(self, at: int, number: int) -> bytes:
        seen, length = _HEAD.unpack_from(self._page, at)
        if seen != number or not number:
            return b""
        return bytes(self._page[at + _HEAD.size : at + _HEAD.size + length])
