"""Hand the descriptor of an arena from the first rank of a host to the others.

The kernel says which process is at the other end of a connection. Only processes with the identity of a rank get the
descriptor; connections of others are closed. Ranks are served in the order in which they come.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from ...base.errors import ArgumentError
from ...base.fd_channel import Channel, accept, connect
from ...engine.memory.arena import Arena
from .identity import Identity

_LOOK_S = 0.05
_SEND_S = 1.0
"""How long a descriptor may take to be sent: no other message is under way on the connection, so there is room."""


def hand_out(
    fd: int, listener: socket.socket, ranks: Mapping[int, Identity], deadline: float, look: Callable[[], object]
) -> list[int]:
    """Give the descriptor to each of these ranks; return the ranks that have not confirmed it by the deadline.

    look: called now and then; raises if there will be no group.
    """
    missing, served = dict(ranks), dict[int, Channel]()
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    look_at = time.monotonic() + _LOOK_S
    try:
        while missing and time.monotonic() < deadline:
            if time.monotonic() >= look_at:
                look()
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


def _serve(fd: int, listener: socket.socket, missing: Mapping[int, Identity]) -> Channel | None:
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


def _hear(channel: Channel, missing: dict[int, Identity]) -> bool:
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


def fetch(home: Identity, first: int, rank: int, deadline: float) -> Arena:
    """The arena that the first rank of this host, at `home`, hands out.

    Raises ArgumentError if another process hands the memory out, OutOfMemory if there is no room for it. Raises
    EOFError or OSError if the first rank has gone, or time is up.
    """
    with closing(connect(home.listens_at, deadline)) as channel:
        if not home.is_at(channel):
            if channel.peer == (home.pid, home.user):
                raise EOFError(f"rank {first} has ended")
            raise ArgumentError(
                f"process {channel.peer.pid} of user {channel.peer.user} listens in place of rank {first}, process "
                f"{home.pid} of user {home.user}: the ranks' entries in the store were changed. Use a MASTER_PORT "
                "that only this job uses."
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
            channel.send(rank, deadline=deadline)
        except BaseException:
            arena.close()
            raise
        return arena
