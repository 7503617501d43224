"""What the two ends of a stream of pieces between ranks of different hosts have in common.

A message is a head (HeadWord, the shape, and the payload if there is room for it). Otherwise the payload follows: up to
COPIED_BYTES as a copy, longer ones as a loan, from the sender's tensor into the receiver's, once the receiver has said
that it is ready. The sender says with each head how long the next one is: while its messages are of one size, long
enough for them.

The receiver has told the carrier of the next piece before it comes. It answers (AnswerWord) when it has taken half a
window of bytes, when it is ready for a loan and when it has it, and at once to the head that ends a stream. The sender
has at most a window of bytes under way that are not answered. What is answered is over for both: a head says how many
answers have come.
"""

from __future__ import annotations

import time
from enum import IntEnum

from ..carrier import Lost
from .frames import HEAD_BYTES, Frames

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
