"""One rank's sends and receives in a group: requests go in, bytes move through channels, messages meet receives."""

import ctypes
import threading
from collections.abc import Iterable, Sequence

import torch

from ...base.errors import MessageMismatch
from ..kernels import kernel
from ..memory.arena import Layout
from ..memory.heap import Heap
from ..tensors import copy_of
from .channel import BEGUN, ReceiveChannel, SendChannel, find_ring, new_ring, ring_capacity
from .far_ends import FarPeers, FarReceiveChannel, FarSendChannel
from .poller import ZERO, Poller
from .requests import ANY_SOURCE, MatchingQueues, Message, MessageRequest, Receive, Send

Place = tuple[int, int, int]
"""Of a plain tensor: its address, the code of its dtype, and its bytes."""


class Mailbox:
    """All sends and receives of one rank in a group, for the thread that holds `lock`. `progress` moves bytes; so do
    `submit`, `send_at_once` and `receive_at_once`.

    Each rank writes to each peer through a ring in its own heap, made on the first send; the peer finds its address in
    the arena. Slot q of the poller watches for bytes from rank q (before there is a ring: for its address), slot
    size + q for room in the ring to rank q. Where rank q is on another host, they watch for the next piece from it, and
    for its next answer.

    most_spins: see `waiting.wait`.
    world_ranks: the ranks of a sub-group's members in the world, for errors.
    far: the members on other hosts, or None.
    finished: the requests that are done; the caller empties this list.
    capacity: the bytes of each ring.
    """

    def __init__(
        self,
        arena: Layout,
        heap: Heap,
        rank: int,
        most_spins: int,
        world_ranks: Sequence[int] = (),
        far: FarPeers | None = None,
    ) -> None:
        self._streams: list[FarReceiveChannel | FarSendChannel] = []
        self.lock = threading.Lock()
        self._arena, self._heap, self._rank, self._size = arena, heap, rank, arena.size
        self._world_ranks = world_ranks
        self._mapping = arena.map  # keeps the addresses below valid
        self.capacity, self._spins = ring_capacity(arena.size), most_spins
        self._rings: list[torch.Tensor] = []  # peers read them as long as the mailbox lives
        self._outgoing: dict[int, SendChannel | FarSendChannel] = {}
        self._incoming: dict[int, ReceiveChannel | FarReceiveChannel] = {}
        self._far, self._far_ranks = far, far.ranks if far else frozenset[int]()
        self._matching = MatchingQueues()
        self.finished: list[MessageRequest] = []
        carrier = far.traffic.carrier if far else None
        self.poller = Poller(2 * self._size, most_spins, arena.awaits_mail(rank), carrier)
        for source in range(self._size):
            if source != rank and source not in self._far_ranks:
                self.poller.watch(source, (arena.mail(source, rank), ZERO, None))

    def submit(self, request: MessageRequest) -> None:
        """Start a request, and finish it at once if possible. Raises OutOfMemory before anything has moved."""
        if request.started:
            return
        request.started = True
        if self._far_ranks:
            self.listen([request.peer] if request.peer != ANY_SOURCE else self._far_ranks)
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

    def send_at_once(self, tensor: torch.Tensor, place: Place, receiver: int, tag: int) -> bool | Send:
        """Send a plain tensor, if a message has gone to this rank before, and no other one waits for room: True.

        Or do nothing: False. A request: the message has begun, and its rest found no room in time.
        """
        channel = self._outgoing.get(receiver)
        if channel.__class__ is not SendChannel or channel.queue:
            return False
        sent = channel.write_whole(*place, tensor.shape, tag)
        if sent != BEGUN:
            return sent == 1
        request = Send(tensor, receiver, tag)
        request.started = True
        channel.queue.append(request)
        self._write(receiver)
        return request

    def receive_at_once(
        self, tensor: torch.Tensor, place: Place, source: int, tag: int, posted: Receive | None = None
    ) -> bool | Receive:
        """Receive into a plain tensor, if the next message from this rank is there, and for it: True.

        Or do nothing: False. A request: the message has begun, and its rest has not come in time.
        posted: the request for this tensor, if there is one.
        """
        channel = self._incoming.get(source)
        if (
            channel.__class__ is not ReceiveChannel
            or channel.message
            or not self._matching.is_next(posted, source, tag)
        ):
            return False
        taken = channel.read_whole(*place, tag)
        if taken and posted is not None:
            self._matching.unpost(posted)
            posted.done = taken != BEGUN
        if taken != BEGUN:
            return taken == 1
        request = posted or Receive(tensor, source, tag)
        request.started = True
        channel.message = message = channel.read_header()
        if message is not None:
            self._match(request, message)
        return request

    def listen(self, ranks: Iterable[int]) -> None:
        """Take messages from these ranks, if they are on other hosts; before, this rank takes none from them."""
        for rank in ranks:
            if rank in self._far_ranks and rank not in self._incoming and self._far is not None:
                channel = self._incoming[rank] = self._far.receiver(rank)
                self._streams.append(channel)
                self.poller.watch(rank, channel.watched)

    def listen_to_all(self) -> None:
        """Take messages from all ranks: in the end, this rank may wait for a rank whose message it does not take."""
        self.listen(self._far_ranks)

    def stream_from(self, source: int) -> FarReceiveChannel | None:
        """The channel from a rank on another host, if that rank may send to this one."""
        channel = self._incoming.get(source)
        return channel if isinstance(channel, FarReceiveChannel) else None

    def cut(self, rank: int) -> tuple[str, float] | None:
        """Why a rank on another host cannot be reached, and since when, by the monotonic clock; None: it can."""
        for channel in (self._incoming.get(rank), self._outgoing.get(rank)):
            if isinstance(channel, FarReceiveChannel | FarSendChannel) and channel.lost is not None:
                return channel.lost.reason, channel.lost_at
        return None

    def leave(self) -> None:
        """From now on, no message is sent or taken."""
        self._leave_streams()
        if self._far is not None:
            self._far.traffic.sweep()

    def _leave_streams(self) -> None:
        for stream in self._streams:
            stream.left = True

    __del__ = _leave_streams

    def progress(self) -> bool:
        """Move all bytes that can move now, of at most one message from each rank; False if there were none."""
        if self._far is not None:
            self._far.traffic.carrier.progress()
        ready = self.poller.poll()
        self._read([slot for slot in ready if slot < self._size])
        for slot in ready:
            if slot >= self._size:
                self._write(slot - self._size)
        return bool(ready)

    def withdraw(self, request: MessageRequest, error: Exception | None = None) -> MessageRequest | None:
        """Take a request out, unless it is done. error: it ends with this error, unless it has one.

        No message is lost: a message that has arrived for a Receive waits for the next Receive. A Send whose frame has
        begun must go on, as its receiver expects the rest: a copy replaces it, and is returned. So must a Receive that
        has refused a message of which a part has come; it is done then.
        """
        if request.done:
            return None
        rest = self._take_out(request)
        request.error = request.error or error
        if request.error is not None:
            self._finish(request)
        return rest

    def _take_out(self, request: MessageRequest) -> MessageRequest | None:
        if isinstance(request, Receive):
            if request.message is None:
                self._matching.unpost(request)
            elif request.error is not None:
                return request.leave_rest()
            else:
                self._detach(request.message)
        elif isinstance(request, Send):
            channel = self._outgoing[request.peer]
            if request is channel.queue[0] and channel.done >= 0:
                channel.queue[0] = rest = Send(copy_of(request.tensor), request.peer, request.tag)
                return rest
            channel.queue.remove(request)
        return None

    def unexpected_tags(self, source: int) -> list[int]:
        """The tags of the messages from a rank that no receive has taken."""
        return self._matching.unexpected_tags(source)

    def _finish(self, request: MessageRequest) -> None:
        request.done = True
        self.finished.append(request)
        self.poller.wake()

    # Sending

    def _channel_to(self, receiver: int) -> SendChannel | FarSendChannel:
        """The channel to a rank. The first time, makes its ring and publishes where it is."""
        channel = self._outgoing.get(receiver)
        if channel is None and self._far is not None and receiver in self._far_ranks:
            channel = self._outgoing[receiver] = self._far.sender(receiver)
            self._streams.append(channel)
        if channel is None:
            self._rings.append(new_ring(self._heap, self.capacity))
            address = self._rings[-1].data_ptr()
            asleep = self._arena.awaits_mail(receiver)
            channel = self._outgoing[receiver] = SendChannel(address, asleep, self._spins)
            offset = address - self._arena.heap(self._rank)
            kernel("waiting.publish_and_wake")(self._arena.mail(self._rank, receiver), offset + 1, asleep)
        return channel

    def _write(self, receiver: int) -> None:
        """Write as much as fits; if bytes are left, watch for more room."""
        queue = (channel := self._outgoing[receiver]).queue
        channel.read_answers()
        while queue and channel.write(queue[0]):
            self._finish(queue.popleft())
        self.poller.watch(self._size + receiver, channel.watched)

    def _send_to_self(self, send: Send) -> None:
        message = Message.of(send, self._rank)
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
        for message in sorted(begun, key=lambda message: message.sent_ns):
            self._arrive(message)
        for channel in channels:
            message = channel.message
            if message is not None and channel.read_payload(message.address):
                channel.message = None
                message.complete = True
                if message.receive is not None:
                    self._deliver(message, message.receive)
            if channel.source in self._far_ranks:
                self.poller.watch(channel.source, channel.watched)

    def _channel_from(self, source: int) -> ReceiveChannel:
        """The channel from a rank that has published its ring's place. Raises InternalError if no ring is there."""
        there = find_ring(self._arena, source, self._rank, self.capacity)
        channel = self._incoming[source] = ReceiveChannel(there, source, self._arena.awaits_mail(source), self._spins)
        self.poller.watch(source, channel.watched)
        return channel

    def _arrive(self, message: Message) -> None:
        """Match a message when its header has come; without a receive it goes to a buffer of its own."""
        receive = self._matching.arrive(message)
        if receive is not None:
            self._match(receive, message)
            return
        if message.buffer is None:
            message.buffer = message.new_buffer()
        self.poller.wake()  # a thread may be about to call `receive_at_once`

    def _match(self, receive: Receive, message: Message) -> None:
        """Let a receive take a message. If dtype or size differ, it fails once the message has come and is dropped."""
        receive.source = message.source
        receive.message, message.receive = message, receive
        if (words := receive.refuses(message)) is not None:
            message.buffer, (sent, expected) = None, words
            receive.error = MessageMismatch(message.source, sent, self._rank, expected, message.tag, self._world_ranks)
        elif not message.complete and message.buffer is None:
            message.buffer = receive.tensor if receive.plain else message.new_buffer()
        if message.complete:
            self._deliver(message, receive)

    def _deliver(self, message: Message, receive: Receive) -> None:
        if message.buffer is not None:
            try:
                receive.deliver(message.buffer)
            except RuntimeError as error:  # such as a tensor of inference mode outside of it
                receive.error = error
        receive.message = None
        self._finish(receive)

    def _detach(self, message: Message) -> None:
        """Take an arriving message from its receive, and give it to the next receive, if one waits."""
        if message.receive is not None and message.buffer is message.receive.tensor:
            arrived, message.buffer = message.buffer, message.new_buffer()
            if arrived is not None:
                ctypes.memmove(message.buffer.data_ptr(), arrived.data_ptr(), self._incoming[message.source].done)
        message.receive = None
        self._arrive(message)
