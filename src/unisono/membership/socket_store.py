"""A key-value store without a port, for ranks of one host: every rank holds all pairs, and rank 0 passes them on.

The name of the socket can be guessed, so any process of this user may connect. Rank 0 hears of each one pair: which
rank it is, and the identity, which must be that of the process there; nobody else is told anything, or waited for.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from contextlib import suppress
from hashlib import sha256

from ..channel import PlainChannel
from ..errors import ArgumentError, WaitTimeout
from .identity import Identity
from .local_sockets import WAITING, accept, connect, listen
from .notices import MeetingVerdict, read_identity

__all__ = ["SocketStore"]

_RETRY_S = 0.005
_RANK = re.compile(r"rank (0|[1-9]\d{0,3})")
_OF_RANK_0 = ("rank 0", "verdict", "host 0", "hosts")
_MOST_SILENT = 128
"""Connections that may be open and have not said which rank they are. A rank says it as soon as it is connected."""
_meetings = itertools.count(1)
"""Numbers this process's stores: all ranks of a job make the same number of them."""


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
        self._deadline, self._home = deadline, Identity.mine()
        self._peers: list[PlainChannel] = []
        """The ranks that have come; on other ranks, rank 0."""
        self._silent: list[PlainChannel] = []
        """Who has connected, and said nothing yet."""
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
            self._send(peer, key, value)

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
        """Read what peers have sent; rank 0 first lets them in, and passes on what they say."""
        if self._listener is None:
            self._peers = [peer for peer in self._peers if self._read(peer)]
            return
        with suppress(BlockingIOError, ConnectionAbortedError):
            for _ in range(WAITING):
                if (peer := accept(self._listener)) is not None:
                    self._silent.append(peer)
        self._peers = [peer for peer in self._peers if _stays(peer)]
        self._silent = [peer for peer in self._silent if not self._let_in(peer)]
        for peer in self._silent[:-_MOST_SILENT]:
            peer.close()
        del self._silent[:-_MOST_SILENT]

    def _let_in(self, peer: PlainChannel) -> bool:
        """Hear which rank a process is, which is then a peer, or is sent away. False if it has said nothing yet."""
        try:
            message = peer.poll()
        except EOFError:
            peer.close()
            return True
        if message is None:
            return False
        pair = _pair(message.value)
        if pair is None or pair[0] in _OF_RANK_0 or not self._is_of(*pair, peer):
            peer.close()
        elif pair[0] in self._values:
            reason = f"another process of this job has come as {pair[0]} already: {self._values[pair[0]]}"
            self._send(peer, "verdict", MeetingVerdict(reason=reason).text())
            peer.close()
        else:
            for key, value in self._values.items():
                self._send(peer, key, value)
            self.set(*pair)
            self._peers.append(peer)
        return True

    def _read(self, peer: PlainChannel) -> bool:
        """Take in what rank 0 has sent. False where it has gone, or what it says is nothing that rank 0 says."""
        with suppress(EOFError):
            while (message := peer.poll()) is not None:
                pair = _pair(message.value)
                if pair is None or (pair[0] == "rank 0" and not self._is_of(*pair, peer)):
                    return False
                self._values[pair[0]] = pair[1]
            return True
        return False

    def _is_of(self, key: str, value: str, peer: PlainChannel) -> bool:
        """Is the process there the one that it says it is? From another container it is heard, to be named."""
        try:
            identity = read_identity(int(key.removeprefix("rank ")), value.encode())
        except ArgumentError:
            return False
        return identity.namespaces != self._home.namespaces or identity.is_at(peer)

    def _send(self, peer: PlainChannel, key: str, value: str) -> None:
        with suppress(OSError):  # it has died, or been stopped, as the meeting will find
            peer.send((key, value), deadline=self._deadline)

    def close(self) -> None:
        """End the connections; rank 0's name is free again."""
        for peer in self._peers + self._silent:
            peer.close()
        if self._listener is not None:
            self._listener.close()


def _pair(said: object) -> tuple[str, str] | None:
    """A message as a key and a value, if it is that."""
    match said:
        case [str(key), str(value)] if key in _OF_RANK_0 or _RANK.fullmatch(key):
            return key, value
    return None


def _stays(peer: PlainChannel) -> bool:
    """Is a rank still connected, and silent, as it should be?"""
    try:
        if peer.poll() is None:
            return True
    except EOFError:
        pass
    peer.close()
    return False
