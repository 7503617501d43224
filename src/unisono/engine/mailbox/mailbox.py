"""A rank's mailbox: what it sends waits here for room in a ring, what it is sent waits here for whoever receives it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import torch

from ...errors import MessageMismatch
from ..heap import Heap
from ..layout import Layout
from .ends import Reader, Writer
from .news import News
from .queues import Queues
from .requests import ANY, Message, Receive, Request, Send
from .ring import CAPACITY, DATA, READ, WRITTEN, EndWord, kernels

__all__ = ["Mailbox"]

_RING_BYTES, _LEAST_RING_BYTES = 512 << 10, 32 << 10
"""Powers of two. A ring stays in a second-level cache, and is too small for a heap to give its pages back to the
system: so a message outlives its sender's group."""
_RINGS_BYTES = 8 << 20
"""What the rings of one rank take together, as long as each has the least."""


class Mailbox:
    """One rank's mailbox in a group. For one thread at a time, but for `news.wait`.

    spins: how long a rank that waits spins at most. world_ranks: what errors call the ranks of a sub-group beside.
    finished: the requests that are done since somebody last emptied this list.
    """

    def __init__(self, arena: Layout, heap: Heap, rank: int, spins: int, world_ranks: Sequence[int] = ()) -> None:
        self._arena, self._heap, self._rank, self._size = arena, heap, rank, arena.size
        self._world_ranks = world_ranks
        self._mapping = arena.map  # the addresses below are good as long as this lives
        self._capacity = _RING_BYTES
        while self._capacity > _LEAST_RING_BYTES and self._capacity * self._size > _RINGS_BYTES:
            self._capacity //= 2
        self._rings: list[torch.Tensor] = []  # peers read them as long as the mailbox lives
        self._writers: dict[int, Writer] = {}
        self._readers: dict[int, Reader] = {}
        self._posted: Queues[Receive] = Queues()
        self._arrived: Queues[Message] = Queues()
        self._number = 0
        self.finished: list[Request] = []
        # A place for every sender, first for its mail word, then for its ring; and one for every receiver.
        self.news = News(2 * self._size, spins)
        for sender in range(self._size):
            if sender != rank:
                self.news.watch(sender, arena.mail(sender, rank), self.news.zero)

    def submit(self, request: Request) -> None:
        """Begin with a request, which is done at once where that can be. Raises OutOfMemory before anything moves."""
        if isinstance(request, Receive):
            message = self._first_arrived(request.peer, request.tag)
            if message is None:
                self._number += 1
                request.number = self._number
                self._posted.push(request.peer, request.tag, request)
            else:
                self._arrived.remove(message.source, message.tag, message)
                self._match(request, message)
        elif isinstance(request, Send):
            if request.peer == self._rank:
                self._send_to_self(request)
            else:
                writer = self._writer(request.peer)
                writer.queue.append(request)
                if len(writer.queue) == 1:
                    self._write(request.peer)

    def progress(self) -> bool:
        """Move what can be moved at once, of at most one message from each rank; False where there was nothing."""
        places = self.news.look()
        self._read([place for place in places if place < self._size])
        for place in places:
            if place >= self._size:
                self._write(place - self._size)
        return bool(places)

    def withdraw(self, request: Request) -> Send | None:
        """Forget a request, if it is not done yet.

        Nothing is lost: what a Receive has taken already waits for the next one. The rest of a Send that has begun is
        copied and goes on, because the receiver counts on it: as a Send of its own, which is returned.
        """
        if request.done:
            return None
        if isinstance(request, Receive):
            if request.message is None:
                self._posted.remove(request.peer, request.tag, request)
            else:
                self._take_back(request.message)
        elif isinstance(request, Send):
            writer = self._writers[request.peer]
            if request is writer.queue[0] and writer.done >= 0:
                writer.queue[0] = rest = Send(request.tensor.clone(), request.peer, request.tag)
                return rest
            writer.queue.remove(request)
        return None

    def fail(self, request: Request, error: Exception) -> None:
        """End a request with an error, if it is not done yet."""
        if not request.done:
            self.withdraw(request)
            request.error = error
            self._finish(request)

    def tags(self, sender: int) -> list[int]:
        """The tags of what has come from a rank and nobody has received."""
        return self._arrived.tags(sender)

    def _finish(self, request: Request) -> None:
        request.done = True
        self.finished.append(request)
        self.news.tell()

    # Sending

    def _writer(self, receiver: int) -> Writer:
        """The end of the ring to a receiver, who learns of it here."""
        writer = self._writers.get(receiver)
        if writer is None:
            ring = self._heap.empty((DATA + self._capacity,), torch.uint8)
            address = ring.data_ptr()
            ctypes.memset(address, 0, DATA)
            ctypes.c_int64.from_address(address + CAPACITY).value = self._capacity
            self._rings.append(ring)
            writer = self._writers[receiver] = Writer(address)
            kernels().publish(self._arena.mail(self._rank, receiver), address - self._arena.heap(self._rank) + 1)
        return writer

    def _write(self, receiver: int) -> None:
        """Write what there is room for; if something is left, look out for more room."""
        writer = self._writers[receiver]
        queue = writer.queue
        while queue and writer.put(queue[0]):
            self._finish(queue.popleft())
        if queue:
            self.news.watch(self._size + receiver, writer.ring + READ, writer.address_of(EndWord.SEEN))
        else:
            self.news.ignore(self._size + receiver)

    def _send_to_self(self, send: Send) -> None:
        tensor = send.tensor
        shape = list(tensor.shape)
        message = Message(self._rank, send.tag, time.monotonic_ns(), tensor.dtype, shape, tensor.nbytes)
        message.data, message.complete = tensor.clone(), True
        self._announce(message)
        self._finish(send)

    # Receiving

    def _read(self, senders: list[int]) -> None:
        """Read on from these senders. Messages that begin now are matched in the order in which they were sent."""
        readers = [self._readers.get(sender) or self._reader(sender) for sender in senders]
        begun = []
        for reader in readers:
            if reader.message is None and (message := reader.begin()):
                reader.message = message
                begun.append(message)
        if len(begun) > 1:
            begun.sort(key=lambda message: message.stamp)
        for message in begun:
            self._announce(message)
        for reader in readers:
            message = reader.message
            if message is not None and reader.fetch(message.data.data_ptr() if message.data is not None else 0):
                reader.message = None
                message.complete = True
                if message.receive is not None:
                    self._hand_over(message, message.receive)

    def _reader(self, sender: int) -> Reader:
        """The end of the ring from a sender, who has published where it is."""
        offset = ctypes.c_int64.from_address(self._arena.mail(sender, self._rank)).value - 1
        reader = self._readers[sender] = Reader(self._arena.heap(sender) + offset, sender)
        self.news.watch(sender, reader.ring + WRITTEN, reader.address_of(EndWord.AT))
        return reader

    def _announce(self, message: Message) -> None:
        """A message begins to come: it is for whoever has waited longest, or waits itself."""
        receive = self._first_posted(message.source, message.tag)
        if receive is not None:
            self._posted.remove(receive.peer, receive.tag, receive)
            self._match(receive, message)
        else:
            if message.data is None:
                message.data = torch.empty(message.shape, dtype=message.dtype, device="cpu")
            self._arrived.push(message.source, message.tag, message)

    def _first_posted(self, source: int, tag: int) -> Receive | None:
        from_source, from_any = self._posted.first(source, tag), self._posted.first(ANY, tag)
        if from_source is None or from_any is None:
            return from_source or from_any
        return min(from_source, from_any, key=lambda receive: receive.number)

    def _first_arrived(self, source: int, tag: int) -> Message | None:
        if source != ANY:
            return self._arrived.first(source, tag)
        messages = [message for rank in range(self._size) if (message := self._arrived.first(rank, tag))]
        return min(messages, key=lambda message: message.stamp, default=None)

    def _match(self, receive: Receive, message: Message) -> None:
        """This message is for this request, which it may not fit."""
        tensor = receive.tensor
        if tensor is not None and (tensor.dtype is not message.dtype or tensor.nbytes != message.nbytes):
            message.data = None
            sent, expected = _text(message.dtype, message.shape), _text(tensor.dtype, list(tensor.shape))
            receive.error = MessageMismatch(message.source, sent, self._rank, expected, message.tag, self._world_ranks)
            self._finish(receive)
            return
        receive.message, message.receive = message, receive
        receive.source = message.source
        if message.complete:
            self._hand_over(message, receive)
        elif message.data is None:
            message.data = tensor if receive.direct else torch.empty(message.shape, dtype=message.dtype, device="cpu")

    def _hand_over(self, message: Message, receive: Receive) -> None:
        """All of the message has come."""
        if message.data is not None:
            try:
                receive.take(message.data)
            except RuntimeError as error:  # torch refuses: such as a tensor of inference mode outside of it
                receive.error = error
        receive.message = None
        self._finish(receive)

    def _take_back(self, message: Message) -> None:
        """Whom a message in the midst of coming was for does not want it any more: it waits for the next."""
        if message.receive is not None and message.data is message.receive.tensor:
            come, message.data = message.data, torch.empty(message.shape, dtype=message.dtype, device="cpu")
            if come is not None:
                ctypes.memmove(message.data.data_ptr(), come.data_ptr(), self._readers[message.source].done)
        message.receive = None
        self._arrived.push_first(message.source, message.tag, message)


def _text(dtype: torch.dtype, shape: list[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{shape}"
