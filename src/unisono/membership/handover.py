"""Hand the descriptor of an arena from rank 0 to the other ranks.

The kernel says which process is at the other end of a connection. Only those that are ranks, by their identities, get
the descriptor; others are sent away without a word. Nobody is waited for alone: ranks are served as they come.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from ..channel import PlainChannel
from ..engine.arena import Arena
from ..errors import ArgumentError, OutOfMemory
from .identity import Identity
from .local_sockets import accept, connect

__all__ = ["fetch", "hand_out"]

_LOOK_S = 0.05
_SEND_S = 1.0
"""How long a descriptor may take to be sent: nothing else is on its way on this connection, so there is room."""
_REFUSAL = 8_000


def hand_out(
    fd: int,
    listener: socket.socket,
    ranks: Mapping[int, Identity],
    deadline: float,
    look: Callable[[Iterable[int]], None],
) -> list[int]:
    """Give a descriptor to each of these ranks; return those that have not said by the deadline that they have it.

    look: called every now and then with the ranks that are missing; raises if one has died. Raises OutOfMemory for a
    rank that has no room for the memory.
    """
    missing, served = dict(ranks), dict[int, PlainChannel]()
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    look_at = 0.0
    try:
        while missing and time.monotonic() < deadline:
            if time.monotonic() >= look_at:
                look(missing)
                look_at = time.monotonic() + _LOOK_S
            ready = [number for number, _ in poller.poll(_LOOK_S * 1e3)]
            if listener.fileno() in ready and (channel := _serve(fd, listener, missing)):
                served[channel.fileno()] = channel
                poller.register(channel, select.POLLIN)
            for number in ready:
                if number in served and not _hear(served[number], missing):
                    poller.unregister(number)
                    served.pop(number).close()
    finally:
        for channel in served.values():
            channel.close()
    return sorted(missing)


def _serve(fd: int, listener: socket.socket, missing: Mapping[int, Identity]) -> PlainChannel | None:
    """Send the descriptor to who connects next, if it is one of these ranks."""
    channel = None
    try:
        channel = accept(listener)
        if channel and any(identity.is_at(channel) for identity in missing.values()):
            channel.send(None, fds=[fd], deadline=time.monotonic() + _SEND_S)
            return channel
    except OSError:  # it has left
        pass
    if channel:
        channel.close()
    return None


def _hear(channel: PlainChannel, missing: dict[int, Identity]) -> bool:
    """Hear whether a rank has the memory. False if it has nothing more to say."""
    try:
        message = channel.poll()
    except EOFError:
        return False
    if message is None:
        return True
    match message.value:
        case [int(rank), str(refusal)] if rank in missing and missing[rank].is_at(channel):
            if refusal:
                raise OutOfMemory(f"rank {rank} cannot map the memory of the group: {refusal}")
            del missing[rank]
    return False


def fetch(name: str, home: Identity, rank: int, deadline: float) -> Arena:
    """The arena that rank 0, which is that process, hands out at this name.

    Raises ArgumentError if another process does, OutOfMemory if there is no room for it, and EOFError or OSError where
    rank 0 has gone or the time is up.
    """
    channel = connect(name, deadline)
    try:
        if not home.is_at(channel):
            raise ArgumentError(
                f"process {channel.peer.pid} of user {channel.peer.user} waits where rank 0, process {home.pid} of "
                f"user {home.user}, should: what the ranks read at the store where they meet has been changed"
            )
        fds = channel.receive(deadline).fds
        if not fds:
            raise EOFError("rank 0 has sent no descriptor")
        try:
            arena = Arena.attach(fds[0])
        except BaseException as error:
            os.close(fds[0])
            if isinstance(error, OutOfMemory):
                channel.send([rank, str(error)[:_REFUSAL]], deadline=deadline)
            raise
        channel.send([rank, ""], deadline=deadline)
    finally:
        channel.close()
    return arena
