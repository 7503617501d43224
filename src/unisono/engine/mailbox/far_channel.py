"""What the two ends of a stream of pieces between ranks of different hosts have in common.

A message begins with a head: HeadWord, the shape, and the payload if it fits. Otherwise the payload follows, in pieces
of at most COPIED_BYTES.

The receiver posts the receives of the next pieces before they come. It answers, with the number of pieces that it has
taken, when these have half a window of bytes. It answers the head that ends a stream at once. The sender has at most a
window of unanswered bytes under way, and knows by the answers which pieces are over.

A piece is one message of a carrier. A carrier reports an arrival only to a thread that waits for it. So a piece ends
with a word that is not 0, and receivers look at this word. A carrier may touch memory until the message is settled: for
ever, if the other side never does its part. So a carrier gets copies, and no tensor of the user.
"""

import ctypes
import time
from enum import IntEnum

import torch

from ..carrier import Carrier, Handle, Lost

HEAD_BYTES = 4608
"""The size of a head; short messages are inside it. On an AMD EPYC, heads in which longer messages fit save a tenth of
the time of 8 KiB over TCP, and nothing from 64 KiB on (November 2026).
"""
WINDOW_BYTES = 16 << 20
COPIED_BYTES = 1 << 20
_MOST_SPARE = 16  # the most pieces of one size that are kept to be used again
END = -1
"""The kind of the head that ends a stream."""


class Piece:
    """Room for `nbytes` bytes, and the word behind them."""

    __slots__ = ("_end", "address", "data", "end", "handle", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        room = -(-nbytes // 8) * 8
        self.data = torch.empty(room + 8, dtype=torch.uint8, device="cpu")
        self.address = self.data.data_ptr()
        self.end = self.address + room
        self._end = ctypes.c_int64.from_address(self.end)
        self.number = 0
        self.handle: Handle | None = None

    @property
    def number(self) -> int:
        """The word behind the bytes: the number of the piece in its stream, from 1 on; 0 before it has arrived. An
        answer has no bytes, and the number of the last piece that is taken.
        """
        return self._end.value

    @number.setter
    def number(self, value: int) -> None:
        self._end.value = value

    def words(self, count: int) -> ctypes.Array[ctypes.c_int64]:
        return (ctypes.c_int64 * count).from_address(self.address)

    def settle(self) -> None:
        """Take it back from the carrier, which is done with it. Raises Lost."""
        if self.handle is not None:
            self.handle.settle()
            self.handle = None


class Pieces:
    """Makes the pieces of all groups of a process.

    Those of two sizes are used again: on an AMD EPYC, 1 MiB over TCP then takes 1.2 ms instead of 2 (November 2026).
    """

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self._spare: dict[int, list[Piece]] = {HEAD_BYTES: [], COPIED_BYTES: []}

    def take(self, nbytes: int) -> Piece:
        """An empty piece."""
        try:
            piece = self._spare[nbytes].pop()  # two threads may do so
        except LookupError:
            return Piece(nbytes)
        piece.number = 0
        return piece

    def give_back(self, piece: Piece) -> None:
        """Take back a settled piece that is used no more."""
        spare = self._spare.get(piece.nbytes)
        if spare is not None and len(spare) < _MOST_SPARE:
            spare.append(piece)

    def send(self, piece: Piece, peer: int, tag: int, number: int) -> None:
        """Give a piece to the carrier, which moves it also if this rank makes no call for long. Raises Lost."""
        piece.number = number
        piece.handle = self.carrier.isend(peer, tag, piece.data)
        self.carrier.keep_moving([piece.handle])

    def expect(self, piece: Piece, peer: int, tag: int) -> None:
        """Let the carrier fill a piece. Raises Lost."""
        piece.handle = self.carrier.irecv(peer, tag, piece.data)


class HeadWord(IntEnum):
    """The words of a head."""

    NBYTES = 0  # of the payload
    TAG = 1
    KIND = 2  # code of the dtype << 8 | number of dimensions, or END
    SHAPE = 3


HEAD_WORDS = int(HeadWord.SHAPE)


def payload_place(dimensions: int) -> int:
    """Where a payload begins that is inside its head."""
    return 8 * (HEAD_WORDS + dimensions)


class FarChannel:
    """peer: a rank of the world.
    tags: the tags of pieces and of answers.
    done: how many bytes of the present payload have been moved; -1 between two messages.
    left: has its mailbox ended?
    lost: why the connection is lost, or None.
    lost_at: when it was lost.
    """

    def __init__(self, pieces: Pieces, peer: int, tags: tuple[int, int]) -> None:
        self._pieces, self.peer = pieces, peer
        self._piece_tag, self._answer_tag = tags
        self.done = -1
        self.left = False
        self.lost: Lost | None = None
        self.lost_at = 0.0

    def _lose(self, lost: Lost) -> None:
        if self.lost is None:
            self.lost, self.lost_at = lost, time.monotonic()
