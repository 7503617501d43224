"""What a carrier does: it moves messages between two ranks of the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch


class Lost(Exception):
    """A message cannot go through any more. The caller finds the cause: the peer of a broken connection is not always
    the culprit.

    peer: the rank of the world at the other side.
    reason: what the transport says.
    """

    def __init__(self, peer: int, reason: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(peer, reason)

    def __str__(self) -> str:
        return f"the connection to rank {self.peer} of the world is lost: {self.reason}"


class Handle(Protocol):
    """A message under way. It keeps its tensor alive. peer, sends: from or to which rank of the world it is."""

    peer: int
    sends: bool

    def settle(self) -> None:
        """Wait until the tensor is the caller's again: a received message is there, a sent one is not read any more.

        It may block for as long as the message takes, so it is for messages that are known to be over, and for threads
        that may block. Raises Lost.
        """


class Carrier(Protocol):
    """Messages between ranks of the world. Two threads may call at the same time.

    A message goes to the receive with its tag. Messages and receives of one tag meet in order: the first sent meets the
    first posted. A tensor is flat, contiguous and of uint8. It belongs to the carrier until its handle is settled. A
    receive must have exactly the size of its message: the transport may report a wrong size too late.

    Messages go on only while a thread calls the carrier, or while compiled code calls its transport, for the
    messages of a program; see `kernels.messages`.

    tags: the number of tags; a tag is below it.
    transport: the address of the words of a `TransportWord` each.
    users: what keeps the memory of messages of failed calls; the transport may read and write there.
    """

    tags: int
    transport: int
    users: set[Any]

    def isend(self, peer: int, tag: int, data: torch.Tensor) -> Handle:
        """Begin to send a tensor; does not wait for the receiver. Raises Lost."""

    def irecv(self, peer: int, tag: int, data: torch.Tensor) -> Handle:
        """Begin to receive a tensor. Raises Lost."""

    def pending(self, messages: Iterable[Handle]) -> list[Handle]:
        """The messages that are not over. Raises Lost."""

    def keep_moving(self, messages: Iterable[Handle]) -> None:
        """Let these sent messages go on, also if this rank makes no call for long."""

    @property
    def owes(self) -> bool:
        """Are there messages that have been given up and are still under way?"""

    def progress(self) -> None:
        """Let messages go on. A thread that waits for messages calls this."""

    def wait(self, address: int, goal: int, pairs: int, count: int, waited_ns: int, limit_ns: int) -> int:
        """Let messages go on until something has changed in memory, see `kernels.waiting.wait`: 1; 0 after limit_ns."""

    def route(self, peer: int, tag: int, *, sends: bool) -> tuple[int, int]:
        """The transport's tag for a message to or from a peer, and the endpoint that sends it. Raises Lost."""

    def run(self, kernel: Callable[..., int], arguments: tuple[int, ...], peer: int) -> int:
        """Call compiled code that calls the transport. Raises Lost, for this peer, if the carrier has ended."""

    def adopt(self, request: int, peer: int, data: torch.Tensor, *, sends: bool) -> Handle:
        """A handle for a message that compiled code has begun. Raises Lost."""

    def lost(self, peer: int, status: int) -> Lost:
        """The error for a message with this status."""

    def give_up(self, messages: Iterable[Handle]) -> None:
        """Keep the messages of a call that has failed as long as the carrier may move them. `close` does not wait for
        them: perhaps no rank takes them.
        """

    def abort(self) -> None:
        """End the carrier at once: every `settle` that waits raises Lost, as does every later call. From any thread."""

    def close(self) -> None:
        """Free all resources. Sent messages may leave before, for some seconds. A message that has not left by then
        never does; its receiver gets Lost.
        """
