"""What the two ends of a stream of pieces between ranks of different hosts have in common.

A message begins with a head: HeadWord, the shape, and the payload if it fits. Otherwise the payload follows. Up to
COPIED_BYTES it is a copy. A longer payload is a loan: it goes from the sender's tensor into the receiver's, once the
receiver has said that it is ready. Each head says how long the next head is. While messages have one size, the next
head has room for one.

The receiver posts the receive of the next piece before the piece comes. It answers (AnswerWord) when it has taken half
a window of bytes, when it is ready for a loan, and when it has the loan. It answers the head that ends a stream at
once. The sender has at most a window of unanswered bytes under way. A head says how many answers have come: so both
sides know which pieces and answers are over.

A piece is one message of a carrier. A carrier reports an arrival only to a thread that waits for it. So a piece ends
with a word that is not 0, and receivers look at this word. A carrier may touch memory until the message is settled: for
ever, if the other side never does its part. So a carrier gets copies of short payloads. It gets a tensor of the user
only in a `ZeroCopyFrame`, once the other side is ready.
"""

import ctypes
import time
from collections.abc import Callable
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
        """The word behind the bytes: the number of the piece in its stream, from 1 on; 0 before it has arrived."""
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
    """A piece without bytes. Before it, the memory of a tensor is sent as a message of its own. Keeps the tensor."""

    __slots__ = ("body", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(0)
        self.tensor = tensor
        memory = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.data_ptr())
        self.body = torch.frombuffer(memory, dtype=torch.uint8)


class Frames:
    """Makes the pieces of all groups of a process. Pieces of the usual size are used again.

    sent: called with each copied piece that is sent. Its rank may make no call for long.
    """

    def __init__(self, carrier: Carrier, sent: Callable[[Handle], None]) -> None:
        self.carrier, self._sent = carrier, sent
        self._spare: list[FarFrame] = []

    def take(self, nbytes: int) -> FarFrame:
        """An empty piece."""
        if nbytes == HEAD_BYTES:
            try:
                piece = self._spare.pop()  # two threads may do so
            except IndexError:
                return FarFrame(nbytes)
            piece.number = 0
            return piece
        return FarFrame(nbytes)

    def give_back(self, piece: FarFrame) -> None:
        """Take back a settled piece that is used no more."""
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
            self._sent(piece.handle)

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
"""The kind of the head that ends a stream."""


class HeadWord(IntEnum):
    """The words of a head."""

    NBYTES = 0  # of the payload
    TAG = 1
    KIND = 2  # code of the dtype << 8 | number of dimensions, or END
    ANSWERS = 3  # how many answers have come
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
    """peer: a rank of the world.
    tags: the tags of pieces and of answers.
    done: how many bytes of the present payload have been moved; -1 between two messages.
    lost: why the connection is lost, or None.
    lost_at: when it was lost.
    """

    def __init__(self, pieces: Frames, peer: int, tags: tuple[int, int]) -> None:
        self._pieces, self._peer = pieces, peer
        self._piece_tag, self._answer_tag = tags
        self._head_bytes = HEAD_BYTES  # the bytes of the next head
        self.done = -1
        self.lost: Lost | None = None
        self.lost_at = 0.0

    def _lose(self, lost: Lost) -> None:
        if self.lost is None:
            self.lost, self.lost_at = lost, time.monotonic()
