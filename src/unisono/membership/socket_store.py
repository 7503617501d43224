"""A key-value store without a port, for ranks of one host: every rank holds all pairs, and rank 0 passes them on."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import time
from contextlib import suppress
from hashlib import sha256

from ..channel import Channel, remaining
from ..errors import ArgumentError, WaitTimeout

__all__ = ["SocketStore", "accept", "connect", "listen"]

_RETRY_S = 0.005
_CREDENTIALS = struct.Struct("3i")
_meetings = itertools.count(1)
"""Numbers this process's stores: all ranks of a job make the same number of them."""


def listen(name: str) -> socket.socket:
    """A socket that listens at a name in this host's abstract namespace: no file, gone with its process."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"\0{name}")
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket, timeout_s: float | None) -> Channel | None:
    """The next connection; None if another user has made it. Raises TimeoutError, BlockingIOError with timeout_s=0."""
    listener.settimeout(timeout_s)
    sock, _ = listener.accept()
    if _user_of(sock) != os.getuid():
        sock.close()  # such names are public
        return None
    return Channel(sock)


def connect(name: str, deadline: float) -> Channel:
    """A connection to the process of this user that listens at a name. Raises OSError where none does."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(remaining(deadline))
        sock.connect(f"\0{name}")
        if _user_of(sock) != os.getuid():
            raise ArgumentError(f"the socket where rank 0 should wait belongs to user {_user_of(sock)}")
        return Channel(sock)


class SocketStore:
    """The part of torch's Store that a meeting needs, over a Unix socket named after the job.

    Nothing outlives the processes, two jobs have two names, and the kernel says whose processes are connected. Raises
    ArgumentError where the name is taken, WaitTimeout where rank 0 does not come.
    """

    def __init__(self, job: str, rank: int, timeout_s: float) -> None:
        start, deadline = time.monotonic(), time.monotonic() + timeout_s
        # Hashed, because a name has at most 107 bytes.
        name = "unisono " + sha256(f"{os.getuid()} {job} {next(_meetings)}".encode()).hexdigest()
        self._values: dict[str, str] = {}
        self._peers: list[Channel] = []
        self._listener: socket.socket | None = None
        if rank == 0:
            try:
                self._listener = listen(name)
            except OSError as error:
                raise ArgumentError(f"another process is rank 0 of the job {job} already: {error}") from error
            return
        while True:
            with suppress(OSError):  # rank 0 is late
                self._peers = [connect(name, deadline)]
                return
            if time.monotonic() >= deadline:
                details = f" No process of this network namespace and user is rank 0 of the job {job}."
                raise WaitTimeout("init()", time.monotonic() - start, (0,), rank, details)
            time.sleep(_RETRY_S)

    def set(self, key: str, value: str) -> None:
        """Tell every rank this pair. A key is set once."""
        self._values[key] = value
        for peer in self._peers:
            _send(peer, key, value)

    def check(self, keys: list[str]) -> bool:
        """Are these keys set? Raises RuntimeError, as torch's stores do, where rank 0 has gone."""
        self._take_in()
        there = all(key in self._values for key in keys)
        if not there and not self._peers and self._listener is None:
            raise RuntimeError("rank 0 has ended the meeting")
        return there

    def get(self, key: str) -> bytes:
        """The value of a key that is set."""
        return self._values[key].encode()

    def _take_in(self) -> None:
        """Accept who wants to connect, and read what peers have sent; rank 0 passes it on to the others."""
        if self._listener is not None:
            with suppress(BlockingIOError):
                while True:
                    peer = accept(self._listener, 0)
                    if peer is not None:
                        self._peers.append(peer)
                        for key, value in self._values.items():
                            _send(peer, key, value)
        self._peers = [peer for peer in self._peers if self._read(peer)]

    def _read(self, peer: Channel) -> bool:
        """Take in what a peer has sent. False where it has gone."""
        with suppress(EOFError):
            while (message := peer.poll()) is not None:
                key, value = message.value
                if self._listener is None:
                    self._values[key] = value
                elif key in self._values:
                    reason = f"another process of this job has come as {key} already: {self._values[key]}"
                    _send(peer, "verdict", json.dumps({"reason": reason}))
                else:
                    self.set(key, value)
            return True
        return False

    def close(self) -> None:
        """End the connections; rank 0's name is free again."""
        for peer in self._peers:
            peer.close()
        if self._listener is not None:
            self._listener.close()


def _send(peer: Channel, key: str, value: str) -> None:
    with suppress(OSError):  # it has died, as the meeting will find
        peer.send((key, value))


def _user_of(sock: socket.socket) -> int:
    """The user of the process at the other end, by the kernel's account."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
