"""Unix sockets with a name in this host's abstract namespace, where ranks of one host find each other.

Such names are public. So each end first asks the kernel which process is at the other end.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from ...base.errors import ArgumentError
from ...base.fd_channel import PlainChannel, remaining

_RETRY_S = 0.005
WAITING = 1024
"""Connections that may wait to be accepted."""


def listen(name: str) -> socket.socket:
    """A socket that listens at a name: it has no file, and ends with its process."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"\0{name}")
        listener.listen(WAITING)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> PlainChannel | None:
    """The next connection; None if another user has made it. Raises BlockingIOError if there is none yet."""
    sock, _ = listener.accept()
    channel = PlainChannel(sock)
    if channel.peer.user == os.getuid():
        return channel
    channel.close()
    return None


def connect(name: str, deadline: float) -> PlainChannel:
    """A connection to the process that listens at a name. Raises ArgumentError if it is another user's process.

    Raises OSError if no process listens, and at the deadline, if too many connections wait to be accepted.
    """
    while True:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(remaining(deadline))
            with suppress(BlockingIOError):
                sock.connect(f"\0{name}")
                channel = PlainChannel(sock)
                break
        if time.monotonic() >= deadline:
            raise TimeoutError(f"too many processes connect to {name}")
        time.sleep(_RETRY_S)
    if channel.peer.user != os.getuid():
        raise ArgumentError(
            f"the socket where rank 0 should wait belongs to user {channel.peer.user}, process {channel.peer.pid}: "
            "another process has taken its name, or changed what the ranks read at the store where they meet"
        )
    return channel
