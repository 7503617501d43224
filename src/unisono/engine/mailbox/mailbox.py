"""One rank's sends and receives in a group: requests go in, bytes move through rings, messages meet receives."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import torch

from ...errors import InternalError, MessageMismatch
from ..heap import Heap
from ..layout import Layout
from ..tensors import dtype_name
from .channel import ReceiveChannel, SendChannel
from .matching import MatchingQueues
from .poller import Poller
from .requests import Message, MessageRequest, Receive, Send
from .ring import CAPACITY, DATA, READ, WRITTEN, CursorWord, kernels

__all__ = ["Mailbox"]

_RING_BYTES, _LEAST_RING_BYTES = 512 << 10, 32 << 10
"""Powers of two. A ring fits into a second-level cache, and is too small for a heap to give its pages back to the
system: so a message outlives its sender's group."""
_ALL_RINGS_BYTES = 8 << 20
"""The most for all rings of a rank, unless each is as small as it may be."""


class Mailbox:
    """All sends and receives of one rank in a group, for one thread at a time. Bytes move in `submit` and `progress`.

    Each rank writes to each peer through a ring in its own heap, made on the first send; the peer finds its address in
    the arena. Slot q of the poller watches for bytes from rank q (before there is a ring: for its address), slot
    size + q for room in the ring to rank q.

    most_spins: see `waiting.wait`. world_ranks: of the members of a sub-group, for errors. finished: the requests that
    are done; the caller empties this list.
    """

    def __init__(self, arena: Layout, heap: Heap, rank: int, most_spins: int, world_ranks: Sequence[int] = ()) -> None:
        self._arena, self._heap, self._rank, self._size = arena, heap, rank, arena.size
        self._world_ranks = world_ranks
        self._mapping = arena.map  # keeps the addresses below valid
        self._capacity = _RING_BYTES
        while self._capacity > _LEAST_RING_BYTES and self._capacity * self._size > _ALL_RINGS_BYTES:
            self._capacity //= 2
        self._rings: list[torch.Tensor] = []  # peers read them as long as the mailbox lives
        self._outgoing: dict[int, SendChannel] = {}
        self._incoming: dict[int, ReceiveChannel] = {}
        self._matching = MatchingQueues()
        self.finished: list[MessageRequest] = []
        self.poller = Poller(2 * self._size, most_spins)
        for source in range(self._size):
            if source != rank:
                self.poller.watch(source, arena.mail(source, rank), self.poller.zero)

    def submit(self, request: MessageRequest) -> None:
        """Start a request, and finish it at once if possible. Raises OutOfMemory before anything has moved."""
        if isinstance(request, Receive):
            message = self._matching.post(request)
            if message is not None:
                self._match(request, message)
        elif isinstance(request, Send):
            if request.peer == self._rank:
                self._send_to_self(request)
            else:
                channel = self._channel_to(request.peer)
                channel.queue.append(request)
                if len(channel.queue) == 1:
                    self._write(request.peer)

    def progress(self) -> bool:
        """Move what can be moved now, of one message from each rank at most; False if there was nothing to do."""
        ready = self.poller.poll()
        self._read([slot for slot in ready if slot < self._size])
        for slot in ready:
            if slot >= self._size:
                self._write(slot - self._size)
        return bool(ready)

    def cancel(self, request: MessageRequest) -> Send | None:
        """Take a request out, unless it is done.

        No message is lost: what has arrived for a Receive waits for the next one. A Send whose frame has begun must go
        on, as its receiver expects the rest: a copy takes its place, which is returned.
        """
        if request.done:
            return None
        if isinstance(request, Receive):
            if request.message is None:
                self._matching.unpost(request)
            else:
                self._detach(request.message)
        elif isinstance(request, Send):
            channel = self._outgoing[request.peer]
            if request is channel.queue[0] and channel.done >= 0:
                channel.queue[0] = rest = Send(request.tensor.clone(), request.peer, request.tag)
                return rest
            channel.queue.remove(request)
        return None

    def fail(self, request: MessageRequest, error: Exception) -> Send | None:
        """End a request with an error, unless it is done. Returns what `cancel` does."""
        rest = None
        if not request.done:
            rest = self.cancel(request)
            request.error = error
            self._finish(request)
        return rest

    def unexpected_tags(self, source: int) -> list[int]:
        """The tags of the messages from a rank that no receive has taken."""
        return self._matching.unexpected_tags(source)

    def _finish(self, request: MessageRequest) -> None:
        request.done = True
        self.finished.append(request)
        self.poller.wake()

    # Sending

    def _channel_to(self, receiver: int) -> SendChannel:
        """The channel to a rank. The first time, makes its ring and publishes where it is."""
        channel = self._outgoing.get(receiver)
        if channel is None:
            ring = self._heap.empty((DATA + self._capacity,), torch.uint8)
            address = ring.data_ptr()
            ctypes.memset(address, 0, DATA)
            ctypes.c_int64.from_address(address + CAPACITY).value = self._capacity
            self._rings.append(ring)
            channel = self._outgoing[receiver] = SendChannel(address)
            kernels().publish(self._arena.mail(self._rank, receiver), address - self._arena.heap(self._rank) + 1)
        return channel

    def _write(self, receiver: int) -> None:
        """Write what there is room for; if something is left, watch for more room."""
        channel = self._outgoing[receiver]
        queue = channel.queue
        while queue and channel.write(queue[0]):
            self._finish(queue.popleft())
        if queue:
            self.poller.watch(self._size + receiver, channel.ring + READ, channel.address_of(CursorWord.SEEN))
        else:
            self.poller.unwatch(self._size + receiver)

    def _send_to_self(self, send: Send) -> None:
        tensor = send.tensor
        shape = list(tensor.shape)
        message = Message(self._rank, send.tag, time.monotonic_ns(), tensor.dtype, shape, tensor.nbytes)
        message.buffer, message.complete = tensor.clone(), True
        self._arrive(message)
        self._finish(send)

    # Receiving

    def _read(self, sources: list[int]) -> None:
        """Read from the rings of these ranks. New messages are matched in the order in which they were sent."""
        channels = [self._incoming.get(source) or self._channel_from(source) for source in sources]
        begun = []
        for channel in channels:
            if channel.message is None and (message := channel.read_header()):
                channel.message = message
                begun.append(message)
        if len(begun) > 1:
            begun.sort(key=lambda message: message.sent_ns)
        for message in begun:
            self._arrive(message)
        for channel in channels:
            message = channel.message
            if message is not None and channel.read_payload(
                message.buffer.data_ptr() if message.buffer is not None else 0
            ):
                channel.message = None
                message.complete = True
                if message.receive is not None:
                    self._deliver(message, message.receive)

    def _channel_from(self, source: int) -> ReceiveChannel:
        """The channel from a rank, which has published where its ring is. Raises InternalError if no ring is there."""
        offset = ctypes.c_int64.from_address(self._arena.mail(source, self._rank)).value - 1
        there = self._arena.heap(source) + offset
        fits = offset >= 0 == offset % 8 and offset + DATA + self._capacity <= self._arena.heap_bytes
        if not fits or ctypes.c_int64.from_address(there + CAPACITY).value != self._capacity:
            raise InternalError(
                f"rank {source} says that its messages lie at byte {offset} of its heap, where they are not: a program "
                "has overwritten shared memory, or the ranks run different versions"
            )
        channel = self._incoming[source] = ReceiveChannel(there, source)
        self.poller.watch(source, channel.ring + WRITTEN, channel.address_of(CursorWord.POSITION))
        return channel

    def _arrive(self, message: Message) -> None:
        """Match a message whose header has come; without a receive it goes to a buffer of its own."""
        receive = self._matching.arrive(message)
        if receive is not None:
            self._match(receive, message)
        elif message.buffer is None:
            message.buffer = message.new_buffer()

    def _match(self, receive: Receive, message: Message) -> None:
        """Let a receive take a message, or fail with MessageMismatch if dtype or size differ."""
        tensor = receive.tensor
        if tensor is not None and (tensor.dtype is not message.dtype or tensor.nbytes != message.nbytes):
            message.buffer = None
            sent = f"{dtype_name(message.dtype)}{message.shape}"
            expected = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
            receive.error = MessageMismatch(message.source, sent, self._rank, expected, message.tag, self._world_ranks)
            self._finish(receive)
            return
        receive.message, message.receive = message, receive
        receive.source = message.source
        if message.complete:
            self._deliver(message, receive)
        elif message.buffer is None:
            message.buffer = tensor if receive.plain else message.new_buffer()

    def _deliver(self, message: Message, receive: Receive) -> None:
        """Finish a receive whose message is complete."""
        if message.buffer is not None:
            try:
                receive.deliver(message.buffer)
            except RuntimeError as error:  # such as a tensor of inference mode outside of it
                receive.error = error
        receive.message = None
        self._finish(receive)

    def _detach(self, message: Message) -> None:
        """Take a message that is arriving from its receive, for the next one."""
        if message.receive is not None and message.buffer is message.receive.tensor:
            arrived, message.buffer = message.buffer, message.new_buffer()
            if arrived is not None:
                ctypes.memmove(message.buffer.data_ptr(), arrived.data_ptr(), self._incoming[message.source].done)
        message.receive = None
        self._matching.put_back(message)
