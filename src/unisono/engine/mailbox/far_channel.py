"""What the two ends of a stream of pieces between ranks of different hosts have in common.

A message begins with a head: a header as in a ring buffer, and the payload if it fits. Otherwise the payload follows,
in pieces of at most COPIED_BYTES.

The receiver posts the receives of the next pieces before they come. It answers, with the number of pieces that it has
taken, when these have half a window of bytes. It answers the head that ends a stream at once. The sender has at most a
window of unanswered bytes under way, and knows by the answers which pieces are over.

A piece is one message of a carrier. A carrier reports an arrival only to a thread that waits for it. So a piece ends
with a word that is not 0, and receivers look at this word. A carrier may touch memory until the message is settled: for
ever, if the other side never does its part. So a carrier gets copies, and no tensor of the user.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import torch

from ..carrier import Carrier, Handle, Lost

HEAD_BYTES = 4608
"""The size of a head; short messages are inside it. On an AMD EPYC, heads in which longer messages fit save a tenth of
the time of 8 KiB over TCP, and nothing from 64 KiB on (November 2026).
"""
WINDOW_BYTES = 16 << 20
COPIED_BYTES = 1 << 20
_ASK_S = 0.0005
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

    @property
    def header(self) -> ctypes.Array[ctypes.c_int64]:
        """The words of a head, the first of which are a `HeadWord` each."""
        return (ctypes.c_int64 * (HEAD_BYTES // 8)).from_address(self.address)

    def settle(self) -> None:
        """Take it back from the carrier, which is done with it. Raises Lost."""
        if self.handle is not None:
            self.handle.settle()
            self.handle = None


class CarrierStreams:
    """The streams of all groups of a process over one carrier, and their pieces.

    Streams are kept as long as the carrier may touch their pieces, also when their mailboxes have ended.

    Pieces of two sizes are used again: on an AMD EPYC, 1 MiB over TCP then takes 1.2 ms instead of 2 (November 2026).
    """

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self._spare: dict[int, list[Piece]] = {HEAD_BYTES: [], COPIED_BYTES: []}
        self._streams: list[FarChannel] = []
        self._lock = threading.RLock()

    def keep(self, stream: FarChannel) -> None:
        with self._lock:
            self.sweep()
            self._streams.append(stream)

    def sweep(self) -> None:
        """End the streams of mailboxes that have ended: messages that they have sent can still be received. Forget the
        streams that are over.
        """
        with self._lock:
            for stream in self._streams:
                if stream.left:
                    stream.end()
            self._streams = [stream for stream in self._streams if not (stream.left and stream.catch_up())]

    def close(self, limit_s: float, gone: Callable[[int], bool]) -> None:
        """The carrier ends: wait until all sent messages have been received, but not longer than limit_s.

        gone: tells whether a rank of the world has gone; its messages are not waited for.
        """
        until = time.monotonic() + limit_s
        for stream in list(self._streams):
            stream.left = True
        self.sweep()
        while any(stream.sends and not gone(stream.peer) for stream in list(self._streams)):
            if time.monotonic() > until:
                return
            time.sleep(_ASK_S)
            self.carrier.progress()
            self.sweep()

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


class FarChannel:
    """One end of a stream.

    sends: is it the sender's?
    peer: a rank of the world.
    tags: the tags of pieces and of answers.
    done: how many bytes of the present payload have been moved; -1 between two messages.
    left: has its mailbox ended?
    lost: why the connection is lost, or None.
    lost_at: when it was lost.
    """

    sends = False

    def __init__(self, traffic: CarrierStreams, peer: int, tags: tuple[int, int]) -> None:
        self._traffic, self.peer = traffic, peer
        self._piece_tag, self._answer_tag = tags
        self.done = -1
        self.left = False
        self.lost: Lost | None = None
        self.lost_at = 0.0

    def end(self) -> None:
        """The group is closed. `catch_up` drops the messages that still come."""

    def catch_up(self) -> bool:
        """See what has come. True when the carrier has nothing of this stream any more, or nothing can come."""
        raise NotImplementedError

    def _lose(self, lost: Lost) -> None:
        if self.lost is None:
            self.lost, self.lost_at = lost, time.monotonic()
