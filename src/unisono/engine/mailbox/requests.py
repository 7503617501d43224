"""Requests to send and to receive, and the messages that arrive."""

import ctypes
import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import torch

from ...base.dtype_codes import NAMES
from ...base.errors import InternalError
from ..kernels.ring_buffer import HeadWord
from ..tensors import DTYPE_CODES, DTYPES, as_bits, copy_of, dtype_name, is_plain, mark_written, needed_by_autograd

_NBYTES, _TAG, _SENT_NS, _KIND, _SHAPE = map(int, HeadWord)

ANY_SOURCE = -1
"""The peer of a Receive that takes a message from any rank."""


class MessageRequest:
    """A send or receive.

    started: whether a mailbox has taken it.
    done: whether it has ended.
    error: why it failed, or None.
    on_done: called once it is done.
    """

    __slots__ = ("done", "error", "on_done", "peer", "started", "tag")

    def __init__(self, peer: int, tag: int) -> None:
        self.peer, self.tag = peer, tag
        self.started = self.done = False
        self.error: Exception | None = None
        self.on_done: Callable[[], None] | None = None

    def tell(self) -> None:
        """Call `on_done`, once."""
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done()


class Send(MessageRequest):
    """Send a plain tensor to a peer. Done as soon as the tensor may change again."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
        super().__init__(peer, tag)
        self.tensor = tensor

    def __str__(self) -> str:
        """`send(float32[3], dst=1, tag=0)`."""
        return f"send({_text(self.tensor)}, dst={self.peer}, tag={self.tag})"


class Receive(MessageRequest):
    """Receive from a peer or from ANY_SOURCE into `tensor`; None: into a new tensor, which is `tensor` once it is done.

    source: the rank that sent the message.
    message: the message that is arriving for this receive, or, with `error`, that it has refused.
    """

    __slots__ = ("marked", "message", "plain", "source", "tensor")

    def __init__(self, tensor: torch.Tensor | None, peer: int, tag: int) -> None:
        super().__init__(peer, tag)
        self.tensor = tensor
        self.plain = tensor is not None and is_plain(tensor)
        self.marked = [] if tensor is None else needed_by_autograd((tensor,))
        self.source = peer
        self.message: Message | None = None

    def __str__(self) -> str:
        """`recv(float32[3], src=1, tag=0)`."""
        source = None if self.peer == ANY_SOURCE else self.peer
        return f"recv({None if self.tensor is None else _text(self.tensor)}, src={source}, tag={self.tag})"

    def refuses(self, message: "Message") -> tuple[str, str] | None:
        """What was sent, and what this receive expects, if dtype or size differ."""
        tensor, dtype = self.tensor, message.dtype
        if dtype is not None and (tensor is None or (tensor.dtype is dtype and tensor.nbytes == message.nbytes)):
            return None
        expected = f"any dtype of torch {torch.__version__}" if tensor is None else _text(tensor)
        return f"{NAMES[message.code]}{message.shape}", expected

    def leave_rest(self) -> "Receive":
        """A request in place of this one, which drops what still comes of a refused message."""
        rest = Receive(None, self.peer, self.tag)
        rest.message, rest.error = self.message, self.error
        if self.message is not None:
            self.message.receive = rest
        return rest

    def deliver(self, data: torch.Tensor) -> None:
        """Take a complete payload, of the right dtype and number of elements. Raises RuntimeError if torch refuses."""
        if self.tensor is None:
            self.tensor = data
            return
        if not self.plain:  # .data has a version counter of its own
            as_bits(self.tensor.data).copy_(as_bits(data).view(self.tensor.shape))
        elif data is not self.tensor:
            ctypes.memmove(self.tensor.data_ptr(), data.data_ptr(), data.nbytes)
        mark_written(self.marked)


def _text(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"


def describe(header: Any, dtype: int, nbytes: int, shape: torch.Size) -> None:
    """Write to the words of a header what it says of a tensor. dtype: its code."""
    header[_NBYTES], header[_KIND] = nbytes, dtype << 8 | len(shape)
    for k, extent in enumerate(shape, _SHAPE):
        header[k] = extent


@dataclass(slots=True, eq=False)
class Message:
    """A message that arrives.

    code: the number of its dtype.
    buffer: for its payload; None: drop it.
    receive: the request that the message is for, or None.
    """

    source: int
    tag: int
    sent_ns: int
    code: int
    shape: list[int]
    nbytes: int
    buffer: torch.Tensor | None = None
    complete: bool = False
    receive: Receive | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        """None: this version of torch does not have it."""
        return DTYPES.get(self.code)

    @classmethod
    def told(cls, header: Any, source: int) -> "Message":
        """The message that these words describe. Raises InternalError for what no sender says of a tensor."""
        kind, nbytes = header[_KIND], header[_NBYTES]
        code, shape = kind >> 8, list(header[_SHAPE : _SHAPE + (kind & 0xFF)])
        dtype, wrong = DTYPES.get(code), ""
        if code not in NAMES or min([nbytes, *shape]) < 0:
            wrong = f"a tensor of dtype {code} and shape {shape}"
        elif dtype is not None and math.prod(shape) * dtype.itemsize != nbytes:
            wrong = f"{nbytes} bytes for {NAMES[code]}{shape}"
        if wrong:
            raise InternalError(
                f"rank {source} has sent {wrong}. A program has overwritten its memory, or the ranks run different "
                "versions."
            )
        return cls(source, header[_TAG], header[_SENT_NS], code, shape, nbytes)

    @classmethod
    def of(cls, send: Send, source: int) -> "Message":
        """A message that has arrived as a copy of what this rank sends to itself."""
        tensor = send.tensor
        message = cls(source, send.tag, monotonic_ns(), DTYPE_CODES[tensor.dtype], list(tensor.shape), tensor.nbytes)
        message.buffer, message.complete = copy_of(tensor), True
        return message

    @property
    def address(self) -> int:
        """Of the buffer; 0: drop the payload."""
        return 0 if self.buffer is None else self.buffer.data_ptr()

    def new_buffer(self) -> torch.Tensor:
        """An uninitialised tensor for the payload."""
        shape: list[int] = [self.nbytes] if self.dtype is None else self.shape
        return torch.empty(shape, dtype=self.dtype or torch.uint8, device="cpu")


class MatchingQueues:
    """The receives without a message, in the order in which they were posted, and the messages without a receive, in
    the order in which they were sent. Of those that fit, the first is taken.
    """

    def __init__(self) -> None:
        self._posted: list[Receive] = []
        self._unexpected: list[Message] = []

    def post(self, receive: Receive) -> Message | None:
        """Take the message for a receive; None: there is none yet, and the receive waits for it."""
        for message in self._unexpected:
            if message.tag == receive.tag and receive.peer in (message.source, ANY_SOURCE):
                self._unexpected.remove(message)
                return message
        self._posted.append(receive)
        return None

    def arrive(self, message: Message) -> Receive | None:
        """Take the receive for a message; None: there is none yet, and the message waits for it."""
        receive = self._first_posted(message.source, message.tag)
        if receive is not None:
            self.unpost(receive)
            return receive
        insort(self._unexpected, message, key=lambda message: message.sent_ns)
        return None

    def is_next(self, receive: Receive | None, source: int, tag: int) -> bool:
        """Would this receive, or one that is posted now (None), take the next message from this rank with this tag?"""
        if self._unexpected and tag in self.unexpected_tags(source):
            return False
        return (self._first_posted(source, tag) if self._posted else None) is receive

    def unpost(self, receive: Receive) -> None:
        self._posted.remove(receive)

    def unexpected_tags(self, source: int) -> list[int]:
        """The tags of the messages from a rank that no receive has taken."""
        return sorted({message.tag for message in self._unexpected if message.source == source})

    def _first_posted(self, source: int, tag: int) -> Receive | None:
        return next((one for one in self._posted if one.tag == tag and one.peer in (source, ANY_SOURCE)), None)
