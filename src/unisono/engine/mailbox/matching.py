"""Which message goes to which receive: queues of posted receives and of unexpected messages."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from .requests import ANY_SOURCE, Message, Receive

Item = TypeVar("Item")
_Queues = dict[tuple[int, int], deque[Item]]
"""First in, first out, for each (source, tag); empty queues are removed."""


class MatchingQueues:
    """The receives that no message has come for, and the messages that no receive has been posted for.

    A message goes to the receive of its tag that was posted first, for its source or for ANY_SOURCE. A receive takes
    the message of its tag that was sent first.
    """

    def __init__(self) -> None:
        self._posted: _Queues[Receive] = {}
        self._unexpected: _Queues[Message] = {}
        self._posts = 0

    def post(self, receive: Receive) -> Message | None:
        """Take the message for a receive; None: there is none yet, and the receive waits for it."""
        message = self._first_unexpected(receive.peer, receive.tag)
        if message is not None:
            _remove(self._unexpected, message.source, message.tag, message)
            return message
        self._posts += 1
        receive.order = self._posts
        self._posted.setdefault((receive.peer, receive.tag), deque()).append(receive)
        return None

    def arrive(self, message: Message) -> Receive | None:
        """Take the receive for a message; None: there is none yet, and the message waits for it."""
        receive = self._first_posted(message.source, message.tag)
        if receive is not None:
            _remove(self._posted, receive.peer, receive.tag, receive)
            return receive
        self._unexpected.setdefault((message.source, message.tag), deque()).append(message)
        return None

    def unpost(self, receive: Receive) -> None:
        """Forget a receive that waits."""
        _remove(self._posted, receive.peer, receive.tag, receive)

    def put_back(self, message: Message) -> Receive | None:
        """Take another receive for a message that was taken; None: there is none, and it is the first of its queue."""
        receive = self._first_posted(message.source, message.tag)
        if receive is not None:
            _remove(self._posted, receive.peer, receive.tag, receive)
            return receive
        self._unexpected.setdefault((message.source, message.tag), deque()).appendleft(message)
        return None

    def unexpected_tags(self, source: int) -> list[int]:
        """The tags of the messages from a rank that no receive has taken."""
        return sorted(tag for rank, tag in self._unexpected if rank == source)

    def _first_posted(self, source: int, tag: int) -> Receive | None:
        from_source, from_any = self._posted.get((source, tag)), self._posted.get((ANY_SOURCE, tag))
        if from_source is None or from_any is None:
            queue = from_source or from_any
            return queue[0] if queue else None
        return min(from_source[0], from_any[0], key=lambda receive: receive.order)

    def _first_unexpected(self, source: int, tag: int) -> Message | None:
        if source != ANY_SOURCE:
            queue = self._unexpected.get((source, tag))
            return queue[0] if queue else None
        queues = [queue for (_, of), queue in self._unexpected.items() if of == tag]
        return min((queue[0] for queue in queues), key=lambda message: message.sent_ns, default=None)


def _remove(queues: _Queues[Item], rank: int, tag: int, item: Item) -> None:
    queue = queues[rank, tag]
    queue.remove(item)
    if not queue:
        del queues[rank, tag]
