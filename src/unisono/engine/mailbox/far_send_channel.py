"""The sender's end of a stream to a rank on another host, with the surface of `channel.SendChannel`. Nothing waits."""

from __future__ import annotations

import ctypes
from collections import deque

from ...base.errors import InternalError
from ..carrier import Lost
from ..tensors.plain import DTYPE_CODES
from . import far_channel as far
from .far_channel import END, HEAD_BYTES, HEAD_WORDS, FarChannel, FarFrame, Frames, ZeroCopyFrame, head_bytes
from .requests import Send


class FarSendChannel(FarChannel):
    """queue: the requests that are not done yet."""

    def __init__(self, pieces: Frames, peer: int, tags: tuple[int, int]) -> None:
        super().__init__(pieces, peer, tags)
        self.queue: deque[Send] = deque()
        self._under_way: deque[FarFrame] = deque()
        self._bytes = 0
        """Of the pieces under way."""
        self._sent = self._taken = self._ready = 0
        self._loan: ZeroCopyFrame | None = None
        self._answer: FarFrame | None = None
        self._answers = 0
        self._last_bytes = 0
        """The head that would have suited the last message."""
        self._ended = False

    @property
    def awaited(self) -> FarFrame | None:
        """The next answer; the word behind it changes when it comes."""
        return self._answer

    @property
    def lending(self) -> bool:
        """Does the carrier have the tensor of the first request?"""
        return self._loan is not None and self.lost is None

    def write(self, send: Send) -> int:
        """Go on with a message; 1 when its tensor may change again."""
        tensor = send.tensor
        nbytes = tensor.nbytes
        try:
            if self.done < 0:
                if not self._may_send(self._head_bytes):
                    return 0
                self._send_head(send)
            if self.done < nbytes <= far.COPIED_BYTES:
                if not self._may_send(nbytes):
                    return 0
                piece = self._pieces.take(nbytes)
                ctypes.memmove(piece.address, tensor.data_ptr(), nbytes)
                self._send(piece)
            elif self.done < nbytes:
                if self._loan is None:
                    if self._ready <= self._sent or self.lost:
                        return 0
                    self._loan = ZeroCopyFrame(tensor)
                    self._send(self._loan)
                if self._taken < self._sent:
                    return 0
                self._loan = None
        except Lost as lost:
            self._lose(lost)
            return 0
        self.done = -1
        return 1

    def read_answers(self) -> None:
        """Take back what the receiver has taken."""
        try:
            while self._answer is not None and self._answer.number:
                answer, self._answer = self._answer, None
                answer.settle()
                self._answers += 1
                self._take_back(*answer.words(len(far.AnswerWord)))
                if self._under_way or not self._ended:
                    self._expect_answer()
        except Lost as lost:
            self._lose(lost)

    def end(self) -> None:
        """No more messages are sent. One that is not complete stays so. Idempotent."""
        if not self._ended and self._sent and self.done < 0 and self.lost is None:
            self._ended = True
            head = self._pieces.take(self._head_bytes)
            head.words(HEAD_WORDS)[:] = [0, 0, END, self._answers, HEAD_BYTES]
            try:
                self._send(head)
            except Lost as lost:
                self._lose(lost)

    def catch_up(self) -> bool:
        """See what has come. True when the carrier has nothing of this stream any more, or nothing can come."""
        self.read_answers()
        return not self._under_way or self.lost is not None

    def _may_send(self, nbytes: int) -> bool:
        return self.lost is None and (not self._under_way or self._bytes + nbytes <= far.WINDOW_BYTES)

    def _send_head(self, send: Send) -> None:
        tensor = send.tensor
        shape, nbytes = tensor.shape, tensor.nbytes
        dimensions = len(shape)
        head, wanted = self._pieces.take(self._head_bytes), head_bytes(dimensions, nbytes)
        again = wanted == self._last_bytes and wanted <= far.MOST_HEAD_BYTES
        self._head_bytes, self._last_bytes = wanted if again else HEAD_BYTES, wanted
        kind = DTYPE_CODES[tensor.dtype] << 8 | dimensions
        head.words(HEAD_WORDS + dimensions)[:] = [nbytes, send.tag, kind, self._answers, self._head_bytes, *shape]
        inside = wanted <= head.nbytes
        if inside:
            ctypes.memmove(head.address + 8 * (HEAD_WORDS + dimensions), tensor.data_ptr(), nbytes)
        self._send(head)
        self.done = nbytes if inside else 0

    def _send(self, piece: FarFrame) -> None:
        self._under_way.append(piece)
        self._bytes += piece.nbytes
        self._sent += 1
        self._pieces.send(piece, self._peer, self._piece_tag, self._sent)
        if self._answer is None:
            self._expect_answer()

    def _expect_answer(self) -> None:
        answer = self._pieces.take(8 * len(far.AnswerWord))
        self._pieces.expect(answer, self._peer, self._answer_tag)
        self._answer = answer

    def _take_back(self, taken: int, ready: int) -> None:
        if not self._taken <= taken <= self._sent or not self._ready <= ready <= self._sent + 1:
            raise InternalError(
                f"rank {self._peer} of the world says that it has taken {taken} pieces of messages and is ready for "
                f"piece {ready}, of {self._sent} that it was sent: the ranks run different versions"
            )
        self._ready = ready
        for _ in range(taken - self._taken):
            piece = self._under_way.popleft()
            self._bytes -= piece.nbytes
            self._taken += 1
            piece.settle()
            self._pieces.give_back(piece)
