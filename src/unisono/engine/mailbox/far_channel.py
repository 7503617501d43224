"""What the two ends of a stream of pieces between ranks of different hosts have in common.

A message is a head (HeadWord, the shape, and the payload if there is room for it). Otherwise the payload follows: up to
COPIED_BYTES as a copy, longer ones as a loan, from the sender's tensor into the receiver's, once the receiver has said
that it is ready. The sender says with each head how long the next one is: while its messages are of one size, long
enough for them.

The receiver has told the carrier of the next piece before it comes. It answers (AnswerWord) when it has taken half a
window of bytes, when it is ready for a loan and when it has it, and at once to the head that ends a stream. The sender
has at most a window of bytes under way that are not answered. What is answered is over for both: a head says how many
answers have come.

A piece is one message of a carrier. Carriers tell nobody that a message has arrived unless he waits for it, so a piece
ends with a word that is not 0, and receivers look at that. What a carrier has been given it may touch until it is
settled: for ever, if the other side never does its part. So it is given copies of short payloads; tensors of the user
only in a `ZeroCopyFrame`, once the other side is known to do its part.
"""

from __future__ import annotations

import ctypes
import time
from enum import IntEnum

import torch

from ..carrier import Carrier, Handle, Lost

HEAD_BYTES = 4608
"""The usual size of a piece that begins a message; short messages are inside it."""
_MOST_SPARE = 64


class FarFrame:
    """Room for `nbytes` bytes, and the word behind them."""

    __slots__ = ("_end", "address", "data", "end", "handle", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        room = -(-nbytes // 8) * 8
        self.data = torch.zeros(room + 8, dtype=torch.uint8, device="cpu")
        self.address = self.data.data_ptr()
        self.end = self.address + room
        self._end = ctypes.c_int64.from_address(self.end)
        self.handle: Handle | None = None

    @property
    def number(self) -> int:
        """The word behind the bytes: which piece of its stream this is, from 1 on; 0 before it has arrived."""
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


class ZeroCopyFrame(FarFrame):
    """A piece without bytes, and before it, as a message of its own, the memory of a tensor, which it keeps alive."""

    __slots__ = ("body", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(0)
        self.tensor = tensor
        memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
        self.body = torch.frombuffer(memory, dtype=torch.uint8)


class Frames:
    """Makes the pieces of all groups of a process, and uses those of the usual size again."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self._spare: list[FarFrame] = []

    def take(self, nbytes: int) -> FarFrame:
        """A piece that has not arrived."""
        if nbytes == HEAD_BYTES:
            try:
                piece = self._spare.pop()  # two threads may do so
            except IndexError:
                return FarFrame(nbytes)
            piece.number = 0
            return piece
        return FarFrame(nbytes)

    def give_back(self, piece: FarFrame) -> None:
        """The piece is used no more. Only for those that are settled."""
        if piece.nbytes == HEAD_BYTES and len(self._spare) < _MOST_SPARE:
            self._spare.append(piece)

    def send(self, piece: FarFrame, peer: int, tag: int, number: int) -> None:
        """Give a piece to the carrier. Raises Lost."""
        piece.number = number
        if isinstance(piece, ZeroCopyFrame):
            body = self.carrier.isend(peer, tag, piece.body)
            piece.handle = _Both(body, self.carrier.isend(peer, tag, piece.data))
        else:
            piece.handle = self.carrier.isend(peer, tag, piece.data)

    def expect(self, piece: FarFrame, peer: int, tag: int) -> None:
        """Let the carrier fill a piece. Raises Lost."""
        if isinstance(piece, ZeroCopyFrame):
            body = self.carrier.irecv(peer, tag, piece.body)
            piece.handle = _Both(body, self.carrier.irecv(peer, tag, piece.data))
        else:
            piece.handle = self.carrier.irecv(peer, tag, piece.data)


class _Both:
    """Two handles as one."""

    def __init__(self, first: Handle, second: Handle) -> None:
        self._first, self._second = first, second

    def settle(self) -> None:
        """See `Handle`."""
        self._first.settle()
        self._second.settle()


WINDOW_BYTES = 4 << 20
COPIED_BYTES = 1 << 20
MOST_HEAD_BYTES = COPIED_BYTES + HEAD_BYTES
"""Less than half a window."""
END = -1
"""The kind of a head that ends a stream."""


class HeadWord(IntEnum):
    """The words of a head."""

    NBYTES = 0  # of the payload
    TAG = 1
    KIND = 2  # code of the dtype << 8 | number of dimensions, or END
    ANSWERS = 3  # how many have come
    NEXT = 4  # the bytes of the next head
    SHAPE = 5


class AnswerWord(IntEnum):
    """The words of an answer."""

    TAKEN = 0  # how many pieces
    READY = 1  # the number of the last loan for which the receiver was ready


HEAD_WORDS = int(HeadWord.SHAPE)


def head_bytes(dimensions: int, nbytes: int) -> int:
    """The bytes of a head with a payload inside, which is at its end."""
    return max(HEAD_BYTES, -(-(8 * (HEAD_WORDS + dimensions) + nbytes) // 8) * 8)


class FarChannel:
    """peer: a rank of the world. tags: of the pieces, and of the answers. done: bytes of the present payload that have
    been moved; -1 between two messages. lost: why nothing can go on, or None; lost_at: since when.
    """

    def __init__(self, pieces: Frames, peer: int, tags: tuple[int, int]) -> None:
        self._pieces, self._peer = pieces, peer
        self._piece_tag, self._answer_tag = tags
        self._head_bytes = HEAD_BYTES
        """Of the next head."""
        self.done = -1
        self.lost: Lost | None = None
        self.lost_at = 0.0

    def _lose(self, lost: Lost) -> None:
        if self.lost is None:
            self.lost, self.lost_at = lost, time.monotonic()
