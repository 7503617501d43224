"""Messages with file descriptors between two processes of one host, over a Unix stream socket.

A message is a value (anything that JSON has), a payload (bytes) and file descriptors. On the wire: a header with the
two lengths and the number of descriptors, the value, the payload; the descriptors travel with the first byte.

Ranks of one host find each other by the name of a socket in the host's abstract namespace (`listen`, `connect`). Such
names are public. So each end first asks the kernel which process is at the other end.
"""

import errno
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .linux import fill_standard_streams

_HEADER = struct.Struct("<IQB")
_CREDENTIALS = struct.Struct("3i")
_CHUNK = 1 << 18
_MAX_FDS = 16

ANY_LENGTH = 1 << 62
"""The most bytes of a message between a program and the ranks that it has started."""

LONGEST_S = 20 * 86_400.0
"""The longest wait for one message: the system counts milliseconds in 32 bits."""

_RETRY_S = 0.005
WAITING = 1024
"""Connections that may wait to be accepted."""


class Packet(NamedTuple):
    """One message."""

    value: Any
    payload: bytes
    fds: list[int]


class PeerProcess(NamedTuple):
    """The process at the other end of a connection: the kernel says which one made the end, or listened there."""

    pid: int
    user: int


class _Socket(socket.socket):
    """A socket that closes without a ResourceWarning: a program may drop a world without closing it."""

    def __del__(self) -> None:
        self.close()


class Channel:
    """One end of a connection; takes the socket over. Not for several threads at once.

    most_bytes: of a message. It believes no message that comes in: none runs code, or takes more memory.
    """

    def __init__(self, sock: socket.socket, most_bytes: int = 64 << 10) -> None:
        self._socket, self._most_bytes = _Socket(fileno=sock.detach()), most_bytes
        self._bytes = bytearray()
        self._fds: list[int] = []

    @classmethod
    def pair(cls, most_bytes: int = 64 << 10) -> "tuple[Channel, socket.socket]":
        """A channel, and the raw socket of its other end, to be handed to another process."""
        fill_standard_streams()
        mine, theirs = socket.socketpair()
        return cls(mine, most_bytes), theirs

    def fileno(self) -> int:
        """The file descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def peer(self) -> PeerProcess:
        """The process at the other end."""
        return peer_of(self._socket)

    def send(self, value: object, payload: bytes = b"", fds: Sequence[int] = (), deadline: float | None = None) -> None:
        """Send one message. Raises TimeoutError at the deadline, and another OSError where the peer has gone."""
        packed = json.dumps(value).encode()
        head = _HEADER.pack(len(packed), len(payload), len(fds)) + packed
        self._socket.settimeout(remaining(deadline))
        try:
            sent = socket.send_fds(self._socket, [head], fds)
            for rest in (memoryview(head)[sent:], payload):
                if rest:  # to send no bytes to a peer that has all, and has left, is an error, too
                    self._socket.sendall(rest)
        finally:
            self._socket.settimeout(None)

    def receive(self, deadline: float | None = None) -> Packet:
        """The next message. Raises as `poll` does, and TimeoutError at the deadline."""
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while (message := self.poll()) is None:
            left = remaining(deadline)
            if not poller.poll(None if left is None else left * 1e3) and left is not None:
                raise TimeoutError("no message arrived in time")
        return message

    def poll(self) -> Packet | None:
        """The next message if it has arrived as a whole, without waiting.

        Raises EOFError if the peer has gone, or if its bytes are no message. Raises another OSError if no file
        descriptor is free for one that came.
        """
        while (message := self._take()) is None:
            try:
                # Not socket.recv_fds: it drops its flags.
                data, beside, flags, _ = self._socket.recvmsg(
                    _CHUNK, socket.CMSG_LEN(_MAX_FDS * 4), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None
            except ConnectionError as error:
                raise EOFError("the peer has ended") from error
            if not data:
                raise EOFError("the peer has closed the channel")
            self._bytes += data
            for _, _, numbers in beside:
                self._fds += memoryview(numbers[: len(numbers) // 4 * 4]).cast("i").tolist()
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return message

    def _take(self) -> Packet | None:
        if len(self._bytes) < _HEADER.size:
            return None
        value, payload, count = _HEADER.unpack_from(self._bytes)
        middle, end = _HEADER.size + value, _HEADER.size + value + payload
        if end > self._most_bytes or not count <= len(self._fds) <= count + _MAX_FDS:
            raise EOFError(f"the peer has sent an invalid message (of {end} bytes with {count} descriptors)")
        if len(self._bytes) < end:
            return None
        with memoryview(self._bytes) as view:
            packed, beside = bytes(view[_HEADER.size : middle]), bytes(view[middle:end])
        try:
            message = Packet(json.loads(packed), beside, self._fds[:count])
        except (ValueError, RecursionError) as error:
            raise EOFError("the peer has sent an invalid message") from error
        del self._bytes[:end], self._fds[:count]
        return message

    def hang_up(self) -> None:
        """End the connection, also for processes that have inherited a copy of this end, and close it."""
        with suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def end_sending(self) -> None:
        """Let the peer see the end. Messages that the peer still sends can be received."""
        with suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this process's copy of this end."""
        self._socket.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def __del__(self) -> None:
        self.close()


def remaining(deadline: float | None) -> float | None:
    """Seconds until a deadline on the monotonic clock, a millisecond to LONGEST_S; None where there is none."""
    return None if deadline is None else max(1e-3, min(LONGEST_S, deadline - time.monotonic()))


def peer_of(sock: socket.socket) -> PeerProcess:
    """The process at the other end of a Unix socket. Raises OSError if there is none."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerProcess(*_CREDENTIALS.unpack(packed)[:2])


def listen(name: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A socket that listens at a name: it has no file, and ends with its process."""
    fill_standard_streams()
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(f"\0{name}")
        listener.listen(WAITING)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> Channel | None:
    """The next connection; None if another user has made it. Raises BlockingIOError if there is none yet."""
    fill_standard_streams()
    sock, _ = listener.accept()
    channel = Channel(sock)
    if channel.peer.user == os.getuid():
        return channel
    channel.close()
    return None


def connect(name: str, deadline: float) -> Channel:
    """A connection to the process that listens at a name. Raises ArgumentError if it is another user's process.

    Raises OSError if no process listens, and at the deadline, if too many connections wait to be accepted.
    """
    fill_standard_streams()
    while True:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(remaining(deadline))
            with suppress(BlockingIOError):
                sock.connect(f"\0{name}")
                channel = Channel(sock)
                break
        if time.monotonic() >= deadline:
            raise TimeoutError(f"too many processes are connecting to {name}")
        time.sleep(_RETRY_S)
    if channel.peer.user != os.getuid():
        from .errors import ArgumentError  # a sentinel does without

        raise ArgumentError(
            f"the socket of rank 0 belongs to another process (pid {channel.peer.pid}, user {channel.peer.user}), "
            "which took its name or changed the ranks' entries in the store. End that process, and start the job "
            "again."
        )
    return channel
