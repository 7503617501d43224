"""The two ends of a stream between ranks on two hosts, with the methods of the ends in `channel`. No method waits.

`FarPeers` makes them.
"""

import ctypes
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ...base.errors import InternalError
from ...base.records import digest
from ..carrier import Lost
from ..kernels.ring_buffer import HeadWord, head_bytes
from ..tensors import DTYPE_CODES
from . import far_channel as far
from .far_channel import END, HEAD_BYTES, CarrierStreams, FarChannel, Piece
from .poller import ZERO, Watched
from .requests import Message, Send, describe

_AHEAD = 16  # for how many pieces of a payload a receiver is ready at once


class FarSendChannel(FarChannel):
    """queue: the requests that are not done yet."""

    sends = True

    def __init__(self, traffic: CarrierStreams, peer: int, tags: tuple[int, int]) -> None:
        super().__init__(traffic, peer, tags)
        self.queue: deque[Send] = deque()
        self._under_way: deque[Piece] = deque()
        self._bytes = 0  # the bytes of the pieces under way
        self._sent = self._taken = 0
        self._answer: Piece | None = None
        self._ended = False

    @property
    def watched(self) -> Watched | None:
        """The next answer: its word changes when it comes."""
        return None if self._answer is None else (self._answer.end, ZERO, self._answer)

    def write(self, send: Send) -> int:
        """Go on with a message; 1 when its tensor may change again."""
        tensor = send.tensor
        nbytes = tensor.nbytes
        try:
            if self.done < 0:
                if not self._may_send(HEAD_BYTES):
                    return 0
                self._send_head(send)
            while self.done < nbytes:
                size = min(far.COPIED_BYTES, nbytes - self.done)
                if not self._may_send(size):
                    return 0
                piece = self._traffic.take(size)
                ctypes.memmove(piece.address, tensor.data_ptr() + self.done, size)
                self._send(piece)
                self.done += size
        except Lost as lost:
            self._lose(lost)
            return 0
        self.done = -1
        return 1

    def read_answers(self) -> None:
        """Take back the pieces that the receiver has taken."""
        try:
            while self._answer is not None and self._answer.number:
                answer, self._answer = self._answer, None
                answer.settle()
                self._take_back(answer.number)
                if self._under_way or not self._ended:
                    self._expect_answer()
        except Lost as lost:
            self._lose(lost)

    def end(self) -> None:
        """End the stream. A message that is not complete stays incomplete. Idempotent."""
        if not self._ended and self._sent and self.done < 0 and self.lost is None:
            self._ended = True
            head = self._traffic.take(HEAD_BYTES)
            head.header[HeadWord.KIND] = END
            try:
                self._send(head)
            except Lost as lost:
                self._lose(lost)

    def catch_up(self) -> bool:
        self.read_answers()
        return not self._under_way or self.lost is not None

    def _may_send(self, nbytes: int) -> bool:
        return self.lost is None and (not self._under_way or self._bytes + nbytes <= far.WINDOW_BYTES)

    def _send_head(self, send: Send) -> None:
        tensor, head = send.tensor, self._traffic.take(HEAD_BYTES)
        nbytes, place, header = tensor.nbytes, head_bytes(tensor.dim()), head.header
        describe(header, DTYPE_CODES[tensor.dtype], nbytes, tensor.shape)
        header[HeadWord.TAG] = send.tag
        inside = place + nbytes <= HEAD_BYTES
        if inside:
            ctypes.memmove(head.address + place, tensor.data_ptr(), nbytes)
        self._send(head)
        self.done = nbytes if inside else 0

    def _send(self, piece: Piece) -> None:
        self._under_way.append(piece)
        self._bytes += piece.nbytes
        self._sent += 1
        self._traffic.send(piece, self.peer, self._piece_tag, self._sent)
        if self._answer is None:
            self._expect_answer()

    def _expect_answer(self) -> None:
        answer = self._traffic.take(0)
        self._traffic.expect(answer, self.peer, self._answer_tag)
        self._answer = answer

    def _take_back(self, taken: int) -> None:
        if not self._taken <= taken <= self._sent:
            raise InternalError(
                f"rank {self.peer} of the world has acknowledged {taken} pieces of messages, but {self._sent} were "
                "sent. The ranks run different versions."
            )
        for _ in range(taken - self._taken):
            piece = self._under_way.popleft()
            self._bytes -= piece.nbytes
            self._taken += 1
            piece.settle()
            self._traffic.give_back(piece)


class FarReceiveChannel(FarChannel):
    """source: the sender's rank in the group.
    message: the message that is arriving, or None.
    ended: has the sender said that no more messages come?
    news_at: when the last piece came, by the monotonic clock.
    """

    def __init__(self, traffic: CarrierStreams, peer: int, tags: tuple[int, int], source: int) -> None:
        super().__init__(traffic, peer, tags)
        self.source = source
        self.message: Message | None = None
        self.ended = False
        self.news_at = time.monotonic()
        self._expected: deque[Piece] = deque()
        self._head: Piece | None = None  # the head of the message that is arriving, if it has the payload
        self._rest = 0  # the bytes of the message for whose pieces no receive has been posted
        self._taken = self._unanswered = 0
        self._expect(HEAD_BYTES)

    @property
    def watched(self) -> Watched | None:
        """The next piece: the word behind it changes when it comes."""
        return (self._expected[0].end, ZERO, self._expected[0]) if self._expected else None

    def read_header(self) -> Message | None:
        """The next message, without its payload; None while there is none."""
        head = self._take()
        if head is None:
            return None
        header = head.header
        if header[HeadWord.KIND] == END:
            self.ended = True
            if self._unanswered:
                self._answer()
            return None
        header[HeadWord.SENT_NS] = time.monotonic_ns()  # the other host has a clock of its own
        message = Message.told(header, self.source)
        self.done = 0
        if head_bytes(len(message.shape)) + message.nbytes <= HEAD_BYTES:
            self._head = head
            self._expect(HEAD_BYTES)
        else:
            self._traffic.give_back(head)
            self._rest = message.nbytes
            self._expect_rest()
        return message

    def read_payload(self, target: int) -> int:
        """Take arrived bytes of the payload to this address, or drop them at address 0; 1 when it is complete."""
        message = self.message
        if message is None:
            return 0
        if self._head is not None:
            head, self._head = self._head, None
            self._copy(head, head_bytes(len(message.shape)), target)
        while self.done < message.nbytes and (piece := self._take()) is not None:
            self._copy(piece, 0, target)
            self._expect_rest()
        if self.done < message.nbytes:
            return 0
        self.done = -1
        return 1

    def catch_up(self) -> bool:
        while self.message is not None or (message := self.read_header()) is not None:
            self.message = self.message or message
            if not self.read_payload(0):
                break
            self.message = None
        return self.ended or self.lost is not None

    def _take(self) -> Piece | None:
        """The next piece, if it has come. Answers if it is time to."""
        if not self._expected or not self._expected[0].number:
            return None
        piece = self._expected[0]
        try:
            piece.settle()
        except Lost as lost:  # only a part of the piece has come
            self._lose(lost)
            self._expected.clear()  # the carrier keeps what it may still touch
            return None
        self._expected.popleft()
        self._taken += 1
        if piece.number != self._taken:
            raise self._wrong(f"piece {piece.number} instead of piece {self._taken}")
        self._unanswered += piece.nbytes
        self.news_at = time.monotonic()
        if 2 * self._unanswered >= far.WINDOW_BYTES:
            self._answer()
        return piece

    def _copy(self, piece: Piece, place: int, target: int) -> None:
        if self.message is not None:
            size = min(piece.nbytes - place, self.message.nbytes - self.done)
            if target:
                ctypes.memmove(target + self.done, piece.address + place, size)
            self.done += size
        self._traffic.give_back(piece)

    def _expect_rest(self) -> None:
        """Post the receives of the next pieces of a payload; behind the last one, that of the next head."""
        while self._rest and len(self._expected) < _AHEAD:
            size = min(far.COPIED_BYTES, self._rest)
            self._rest -= size
            self._expect(size)
            if not self._rest:
                self._expect(HEAD_BYTES)

    def _expect(self, nbytes: int) -> None:
        """Post the receive of the next piece."""
        if self.lost is None:
            piece = self._traffic.take(nbytes)
            try:
                self._traffic.expect(piece, self.peer, self._piece_tag)
                self._expected.append(piece)
            except Lost as lost:
                self._lose(lost)

    def _answer(self) -> None:
        """Say how many pieces are taken. The carrier keeps the answer until it has left."""
        if self.lost is None:
            self._unanswered = 0
            try:
                self._traffic.send(self._traffic.take(0), self.peer, self._answer_tag, self._taken)
            except Lost as lost:
                self._lose(lost)

    def _wrong(self, what: str) -> InternalError:
        return InternalError(
            f"rank {self.peer} of the world has sent {what} as a part of its messages. The ranks run different "
            "versions."
        )


@dataclass(frozen=True)
class FarPeers:
    """The members of a group that are on other hosts.

    rank: this rank's number in the group.
    ranks: the members on other hosts.
    gid: the group's number, the same on all members.
    """

    rank: int
    ranks: frozenset[int]
    world_ranks: Sequence[int]
    gid: int
    traffic: CarrierStreams

    def sender(self, receiver: int) -> FarSendChannel:
        """The stream to a rank."""
        peer, tags = self.world_ranks[receiver], self._tags(self.rank, receiver)
        stream = FarSendChannel(self.traffic, peer, tags)
        self.traffic.keep(stream)
        return stream

    def receiver(self, source: int) -> FarReceiveChannel:
        """The stream from a rank."""
        peer, tags = self.world_ranks[source], self._tags(source, self.rank)
        stream = FarReceiveChannel(self.traffic, peer, tags, source)
        self.traffic.keep(stream)
        return stream

    def _tags(self, source: int, receiver: int) -> tuple[int, int]:
        """The tags of pieces and of answers. They are in the upper half: collectives use the lower half."""
        quarter = self.traffic.carrier.tags // 4
        tag = 2 * quarter + digest("messages", self.gid, source, receiver) % quarter * 2
        return tag, tag + 1
