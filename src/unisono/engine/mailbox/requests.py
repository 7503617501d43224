"""What is asked of a mailbox, and what comes through it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from ..written import mark_written, needed_by_autograd

__all__ = ["ANY", "Message", "Receive", "Request", "Send"]

ANY = -1
"""In place of a source: whichever rank's message was sent first."""


class Request:
    """A call that may not be over yet. error: how it ended, if not well. then: what to do when it is over."""

    __slots__ = ("done", "error", "peer", "tag", "then")

    def __init__(self, peer: int, tag: int) -> None:
        self.peer, self.tag = peer, tag
        self.done = False
        self.error: Exception | None = None
        self.then: Callable[[], None] | None = None


class Send(Request):
    """A contiguous tensor for a rank. Done as soon as the tensor may change again."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor, peer: int, tag: int) -> None:
        super().__init__(peer, tag)
        self.tensor = tensor


class Receive(Request):
    """A tensor from a rank or from ANY. tensor: where to; None: a new one, once it has come. source: who sent it."""

    __slots__ = ("direct", "marked", "message", "number", "source", "tensor")

    def __init__(self, tensor: torch.Tensor | None, peer: int, tag: int) -> None:
        super().__init__(peer, tag)
        self.tensor = tensor
        # The bytes that come are those of the tensor, one after the other.
        self.direct = tensor is not None and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        self.marked = [] if tensor is None else needed_by_autograd((tensor,))
        self.source = peer
        self.number = 0
        self.message: Message | None = None

    def take(self, data: torch.Tensor) -> None:
        """Have what has come, of the right dtype and number of elements."""
        if self.tensor is None:
            self.tensor = data
            return
        if not self.direct:
            self.tensor.data.copy_(data.view(self.tensor.shape))  # .data has a version counter of its own
        elif data is not self.tensor:
            ctypes.memmove(self.tensor.data_ptr(), data.data_ptr(), data.nbytes)
        mark_written(self.marked)


class Message:
    """A tensor on its way. stamp: when it was sent, in ns. data: where its bytes go; None: nobody wants them.

    receive: the request that it is for, once there is one.
    """

    __slots__ = ("complete", "data", "dtype", "nbytes", "receive", "shape", "source", "stamp", "tag")

    def __init__(self, source: int, tag: int, stamp: int, dtype: torch.dtype, shape: list[int], nbytes: int) -> None:
        self.source, self.tag, self.stamp = source, tag, stamp
        self.dtype, self.shape, self.nbytes = dtype, shape, nbytes
        self.data: torch.Tensor | None = None
        self.complete = False
        self.receive: Receive | None = None
