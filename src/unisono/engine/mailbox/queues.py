"""First in, first out, for each rank and tag."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["Queues"]

Item = TypeVar("Item")


class Queues(Generic[Item]):
    """One queue per rank and tag, made when it is needed and gone when it is empty."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], deque[Item]] = {}

    def push(self, rank: int, tag: int, item: Item) -> None:
        """Put an item last."""
        self._queues.setdefault((rank, tag), deque()).append(item)

    def push_first(self, rank: int, tag: int, item: Item) -> None:
        """Put an item back to where it was taken from."""
        self._queues.setdefault((rank, tag), deque()).appendleft(item)

    def first(self, rank: int, tag: int) -> Item | None:
        """The item that came first, or None."""
        queue = self._queues.get((rank, tag))
        return queue[0] if queue else None

    def remove(self, rank: int, tag: int, item: Item) -> None:
        """Take an item out."""
        queue = self._queues[rank, tag]
        queue.remove(item)
        if not queue:
            del self._queues[rank, tag]

    def tags(self, rank: int) -> list[int]:
        """The tags for which there is something of this rank."""
        return sorted(tag for of, tag in self._queues if of == rank)
