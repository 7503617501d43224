"""Requests to send and to receive, and the messages that arrive."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from ..tensors.plain import as_bits, is_plain
from ..tensors.written import mark_written, needed_by_autograd

ANY_SOURCE = -1
"""The peer of a Receive that takes a message from any rank."""


class MessageRequest:
    """A send or receive. done: whether it has ended; error: why it failed, or None; on_done: called once it is done.

    The rest is for the log of messages, in the words of `engine.logs.message_log.MessageWord`: entered_ns, nbytes as
    far as known, place, whom; logged: its number there, or 0.
    """

    __slots__ = ("done", "entered_ns", "error", "logged", "nbytes", "on_done", "peer", "place", "tag", "whom")

    def __init__(self, peer: int, tag: int, nbytes: int = 0) -> None:
        self.peer, self.tag, self.nbytes = peer, tag, nbytes
        self.entered_ns = self.place = self.logged = 0
        self.whom = 2 * peer
        self.done = False
        self.error: Exception | None = None
        self.on_done: Callable[[], None] | None = None


class Send(MessageRequest):
    """Send a plain tensor to a peer. Done as soon as the tensor may change again."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
        super().__init__(peer, tag, tensor.nbytes)
        self.tensor = tensor


class Receive(MessageRequest):
    """Receive from a peer or from ANY_SOURCE into `tensor`; None: into a new tensor, which is `tensor` once it is done.

    source: the rank that sent the message. order: counts the receives that have been posted. message: the message
    that is arriving for this receive.
    """

    __slots__ = ("marked", "message", "order", "plain", "source", "tensor")

    def __init__(self, tensor: torch.Tensor | None, peer: int, tag: int) -> None:
        super().__init__(peer, tag)
        self.tensor = tensor
        self.plain = tensor is not None and is_plain(tensor)
        self.marked = [] if tensor is None else needed_by_autograd((tensor,))
        self.source, self.whom = peer, 2 * peer + 1
        self.order = 0
        self.message: Message | None = None

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


class Message:
    """A message that arrives. buffer: for its payload; None: drop it. receive: the request that it is for, or None.

    place: how many have come from its source, with this one.
    """

    __slots__ = ("buffer", "complete", "dtype", "nbytes", "place", "receive", "sent_ns", "shape", "source", "tag")

    def __init__(self, source: int, tag: int, sent_ns: int, dtype: torch.dtype, shape: list[int], nbytes: int) -> None:
        self.source, self.tag, self.sent_ns = source, tag, sent_ns
        self.dtype, self.shape, self.nbytes = dtype, shape, nbytes
        self.buffer: torch.Tensor | None = None
        self.complete = False
        self.place = 0
        self.receive: Receive | None = None

    def new_buffer(self) -> torch.Tensor:
        """An uninitialised tensor for the payload."""
        return torch.empty(self.shape, dtype=self.dtype, device="cpu")
