"""The ranks of a host at their sentinel's socket: which connection is which rank's, and messages to and from them.

The kernel says which process is at the other end. The sentinel only reads messages of ranks, and sends other processes
away without a word. A message is a short list in JSON.
"""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ...base.fd_channel import peer_of
from ...engine.process.alive import start_ticks
from . import MOST_BYTES_LOCAL
from .state_machine import Asked, Closed, Event, Forgot, Pinged, Registered, Woke

_AT_ONCE = 64
_MOST_NUMBER = 1 << 64


class _Connection:
    def __init__(self, sock: socket.socket, rank: int) -> None:
        self.sock, self.rank = sock, rank
        self.waiting: deque[bytes] = deque()

    def send(self, data: bytes) -> None:
        self.waiting.append(data)
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while self.waiting:
                self.sock.send(self.waiting[0])
                self.waiting.popleft()


class Ranks:
    """The connections of the ranks, each with its process number and start time."""

    def __init__(self, listener: socket.socket, ranks: Mapping[int, tuple[int, int]]) -> None:
        self.listener = listener
        self._ranks = {pid: (rank, ticks) for rank, (pid, ticks) in ranks.items()}
        self.connections: dict[int, _Connection] = {}
        self._said: list[bytes] = []
        """The messages for all ranks."""

    def accept(self) -> Iterator[int]:
        """Take in the ranks that have connected; yields their descriptors."""
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self.listener.accept()
            except OSError:  # no process connects, or no descriptor is free
                return
            pid, user = peer_of(sock)
            rank, ticks = self._ranks.get(pid, (-1, 0))
            if user != os.getuid() or rank < 0 or start_ticks(pid) != ticks:
                sock.close()
                continue
            sock.setblocking(False)
            connection = self.connections[sock.fileno()] = _Connection(sock, rank)
            for data in self._said:
                connection.send(data)
            yield sock.fileno()

    def receive(self, fd: int) -> Iterator[Event]:
        """The messages of a rank. Raises ValueError if one makes no sense: then drop the connection."""
        connection = self.connections[fd]
        for _ in range(_AT_ONCE):
            try:
                data, _, flags, _ = connection.sock.recvmsg(MOST_BYTES_LOCAL)
            except BlockingIOError:
                return
            except ConnectionError:  # the rank has left before it had read all; what it has said can still be read
                continue
            if not data:
                self.drop(fd)
                return
            if flags & socket.MSG_TRUNC:
                raise ValueError("a message is too long")
            yield _event(connection.rank, data)

    def tell(self, rank: int | None, value: list[object]) -> None:
        """Send a message to a rank, on all its connections; None: to all ranks, now and when they connect."""
        data = json.dumps(value).encode()
        if rank is None:
            self._said.append(data)
        for connection in self.connections.values():
            if rank in (None, connection.rank):
                connection.send(data)

    def flush(self) -> None:
        """Send messages that did not fit into a rank's queue before."""
        for connection in self.connections.values():
            connection.flush()

    def drop(self, fd: int) -> None:
        """End a connection."""
        self.connections.pop(fd).sock.close()


def _event(rank: int, data: bytes) -> Event:
    """A rank's message as an event. Raises ValueError."""
    try:
        said = json.loads(data)
    except RecursionError as error:
        raise ValueError("no message") from error
    match said:
        case ["register", int(gid), int(start), list(members)] if _are_numbers(gid, start, *members):
            return Registered(rank, gid, start, tuple(members))
        case ["forget", int(gid)] if _are_numbers(gid):
            return Forgot(rank, gid)
        case ["ask", int(gid), int(ticket)] if _are_numbers(gid, ticket):
            return Asked(rank, gid, ticket)
        case ["wake"]:
            return Woke(rank)
        case ["wake", int(gid)] if _are_numbers(gid):
            return Woke(rank, gid)
        case ["ping"]:
            return Pinged(rank)
        case ["close"]:
            return Closed(rank)
    raise ValueError("no message")


def _are_numbers(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < _MOST_NUMBER for value in values)
