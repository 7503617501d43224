"""Hand the descriptor of an arena from the first rank of a host to the others.

The kernel says which process is at the other end of a connection. Only processes with the identity of a rank get the
descriptor; connections of others are closed. Ranks are served in the order in which they come. Each rank then waits for
a last message: the meeting has ended with a group.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ...base.errors import ArgumentError
from ...base.fd_channel import PlainChannel, accept, connect
from ...engine.memory.arena import Arena
from .identity import Identity

_LOOK_S = 0.05
_SEND_S = 1.0
"""How long a descriptor may take to be sent: no other message is under way on the connection, so there is room."""


class Handover:
    """One host's memory on its way from the host's first rank to the others.

    ranks: the ranks that shall get the descriptor.
    missing: the ranks that have not confirmed yet that they have it.
    """

    def __init__(self, fd: int, listener: socket.socket, ranks: Mapping[int, Identity]) -> None:
        self.missing = dict(ranks)
        self._fd, self._listener = fd, listener
        self._served: dict[int, PlainChannel] = {}
        self._poller = select.poll()
        self._poller.register(listener, select.POLLIN)

    def serve(self, deadline: float, look: Callable[[], object]) -> list[int]:
        """Give the descriptor to each rank; return the ranks that have not confirmed it by the deadline.

        look: called now and then; raises if there will be no group.
        """
        look_at = time.monotonic() + _LOOK_S
        while self.missing and time.monotonic() < deadline:
            if time.monotonic() >= look_at:
                look()
                look_at = time.monotonic() + _LOOK_S
            ready = [number for number, _ in self._poller.poll(_LOOK_S * 1e3)]
            if self._listener.fileno() in ready and (channel := _serve(self._fd, self._listener, self.missing)):
                self._served[channel.fileno()] = channel
                self._poller.register(channel, select.POLLIN)
            for number in ready:
                if number in self._served and not _hear(self._served[number], self.missing):
                    self._poller.unregister(number)
                    self._served.pop(number).close()
        return sorted(self.missing)

    def end(self) -> None:
        """Send the last message to the ranks that have the memory."""
        for channel in self._served.values():
            with suppress(OSError):  # the rank has died, as the group will find
                channel.send(None, deadline=time.monotonic() + _SEND_S)

    def close(self) -> None:
        """End the connections. A rank without the last message then knows that it will not come."""
        for channel in self._served.values():
            channel.close()
        self._served.clear()


def _serve(fd: int, listener: socket.socket, missing: Mapping[int, Identity]) -> PlainChannel | None:
    """Send the descriptor to the next process that connects, if it is one of these ranks."""
    channel = None
    try:
        channel = accept(listener)
        if channel and any(identity.is_at(channel) for identity in missing.values()):
            channel.send(None, fds=[fd], deadline=time.monotonic() + _SEND_S)
            return channel
    except OSError:  # the process has left
        pass
    if channel:
        channel.close()
    return None


def _hear(channel: PlainChannel, missing: dict[int, Identity]) -> bool:
    """Read whether a rank has the memory. False if it has left, or sends what no rank would."""
    try:
        message = channel.poll()
    except EOFError:
        return False
    if message is None:
        return True
    match message.value:
        case int(rank) if rank in missing and missing[rank].is_at(channel):
            del missing[rank]
            return True
    return False


def fetch(name: str, first: int, home: Identity, rank: int, deadline: float, alone: Callable[[], object]) -> Arena:
    """The arena that the first rank of this host hands out at this name, after the last message.

    alone: called if the last message does not come; raises if the meeting has not ended with a group.

    Raises ArgumentError if another process hands the memory out, OutOfMemory if there is no room for it. Raises
    EOFError or OSError if the first rank has gone, or time is up, before this rank has the memory.
    """
    channel = connect(name, deadline)
    try:
        if not home.is_at(channel):
            raise ArgumentError(
                f"process {channel.peer.pid} of user {channel.peer.user} waits where rank {first}, process {home.pid} "
                f"of user {home.user}, should: what the ranks read at the store where they meet has been changed"
            )
        fds = channel.receive(deadline).fds
        if not fds:
            raise EOFError(f"rank {first} has sent no descriptor")
        try:
            arena = Arena.attach(fds[0])
        except BaseException:
            os.close(fds[0])
            raise
        try:
            try:
                channel.send(rank, deadline=deadline)
                channel.receive(deadline)
            except (EOFError, OSError):
                alone()
        except BaseException:
            arena.close()
            raise
        return arena
    finally:
        channel.close()
