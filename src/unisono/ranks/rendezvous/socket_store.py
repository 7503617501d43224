"""A key-value store without a port, for ranks of one host: every rank holds all pairs, and rank 0 passes them on.

The name of the socket can be guessed, so any process of this user may connect. From each process rank 0 reads one pair:
its rank and its identity. The identity must be the identity of the process there. Rank 0 tells other processes nothing,
and does not wait for them.
"""

import os
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

from ...base.errors import ArgumentError
from ...base.fd_channel import WAITING, PlainChannel, accept, connect, listen
from ...engine.memory.board import MAX_RANKS
from ...engine.memory.meeting_page import waits, waits_still
from ...engine.process.alive import start_ticks
from .identity import Identity
from .meetings import END
from .rendezvous_messages import MeetingMessage, died, message_of, missing, read_identity, twice

_RETRY_S = 0.005
_ANSWER_S = 1.0  # how long a rank that ends the meeting waits for rank 0's answer
_RANK = r"rank (0|[1-9]\d{0,3})"
_MOST_SILENT = 128
"""Connections that may be open without a message. A process sends its message as soon as it is connected."""
_OF_RANK_0 = ("rank 0", "hosts", "host 0", END)


class SocketStore:
    """The part of torch's Store that a meeting needs, over a Unix socket named after the job.

    The socket ends with the processes, two jobs have two names, and the kernel says which user's processes connect. If
    rank 0 leaves a meeting without a message, a rank connects again: it came when the meeting was over. Raises
    ArgumentError if the name is taken, WaitTimeout if rank 0 does not come, PeerGone if it has died.
    """

    def __init__(self, job: str, rank: int, timeout_s: float) -> None:
        self._start, self._deadline = time.monotonic(), time.monotonic() + timeout_s
        # Hashed, because a name has at most 107 bytes.
        self._name = "unisono " + sha256(f"{os.getuid()} {job}".encode(errors="surrogatepass")).hexdigest()
        self.where = f"the socket of job {job}"
        self._job, self._rank, self._home = job, rank, Identity.mine()
        self._values: dict[str, str] = {}
        self._own: tuple[str, str] | None = None  # the pair that this rank has sent
        self._peers: list[PlainChannel] = []  # the ranks that have come; on other ranks, rank 0
        self._newcomers: Newcomers | None = None  # rank 0's: the processes that connect
        if rank:
            self._connect()
            return
        try:
            self._newcomers = Newcomers(self._name)
        except OSError as error:
            raise ArgumentError(f"another process is rank 0 of the job {job} already: {error}") from error

    def _connect(self) -> None:
        """Connect to rank 0, once it listens."""
        waits((0,), "to begin the meeting", self.where)
        while True:
            with suppress(OSError):  # rank 0 is late
                peer = connect(self._name, self._deadline)
                self._peers, self._pid, self._ticks = [peer], peer.peer.pid, start_ticks(peer.peer.pid)
                return
            if time.monotonic() >= self._deadline:
                details = f" No process of this network namespace and user is rank 0 of the job {self._job}."
                raise missing((0,), self._rank, time.monotonic() - self._start, details)
            waits_still()
            time.sleep(_RETRY_S)

    def set(self, key: str, value: str) -> None:
        """Tell every rank this pair. A key is set once."""
        self._values[key] = value
        for peer in self._peers:
            self._send(peer, key, value)

    def set_first(self, key: str, value: str) -> bytes:
        """Set a key that is not set; return its value then. All ranks but rank 0 set their identity, or why they end
        the meeting. If there are several reasons, rank 0 decides.
        """
        self._take_in()
        if key == END and self._rank:
            return self._propose_end(value)
        if key not in self._values:
            self.set(key, value)
            self._own = self._own or (key, value)
        return self.get(key)

    def _propose_end(self, value: str) -> bytes:
        """How the meeting ends: rank 0 answers with the first reason that it has heard, or has said. If it does not
        answer, it has not said how the meeting ends, and will hear this reason first.
        """
        if END not in self._values:
            for peer in self._peers:
                self._send(peer, END, value)
            until = time.monotonic() + _ANSWER_S
            while END not in self._values and self._peers and time.monotonic() < until:
                self._take_in()
                time.sleep(_RETRY_S)
        self._values.setdefault(END, value)
        return self.get(END)

    def check(self, keys: list[str]) -> bool:
        """Are these keys set? Raises RuntimeError, as torch's stores do, if rank 0 has gone."""
        self._take_in()
        there = all(key in self._values for key in keys)
        if not there and not self._peers and self._newcomers is None:
            self._come_again()
        return there

    def _come_again(self) -> None:
        """Connect to rank 0 again, if it lives and has left this rank without a message. Raises RuntimeError."""
        if self._own is None or len(self._values) > 1 or not self._pid:
            raise RuntimeError("rank 0 has ended the meeting")
        if start_ticks(self._pid) != self._ticks:
            raise died(0, self._pid, self._rank)
        self._connect()
        self._send(self._peers[0], *self._own)

    def get(self, key: str) -> bytes:
        """The value of a key that is set."""
        return self._values[key].encode()

    def value(self, key: str, limit_s: float) -> bytes | None:
        """The value of a key; None if it is not set when this time is over, or when other news has come."""
        if not self.check([key]):
            poller = select.poll()
            for one in (*self._peers, *(self._newcomers.sockets if self._newcomers else ())):
                poller.register(one, select.POLLIN)
            poller.poll(1e3 * max(0.0, limit_s))
        return self.get(key) if self.check([key]) else None

    def _take_in(self) -> None:
        """Read the messages of peers. Rank 0 first lets them in, and passes their messages on."""
        if self._newcomers is None:
            self._peers = [peer for peer in self._peers if self._read(peer)]
            return
        self._peers = [peer for peer in self._peers if self._hear_end(peer)]
        for peer, message in self._newcomers.first_messages():
            self._let_in(peer, message)

    def _let_in(self, peer: PlainChannel, message: object) -> None:
        """Take in a process as the rank of its first message, or send it away."""
        pair = _pair(message)
        if pair is None or pair[0] in _OF_RANK_0 or not self._is_of(*pair, peer):
            peer.close()
        elif self._values.get(pair[0], pair[1]) != pair[1]:
            there = read_identity(int(pair[0].removeprefix("rank ")), self._values[pair[0]].encode())
            error = twice(self.where, int(pair[0].removeprefix("rank ")), f"process {there.pid} on {there.where}")
            self._send(peer, END, message_of(error, 0).text())
            peer.close()
        else:
            for key, value in self._values.items():
                self._send(peer, key, value)
            self.set(*pair)
            self._peers.append(peer)

    def _hear_end(self, peer: PlainChannel) -> bool:
        """Is a rank still connected, and silent? Only a message may come that says why the rank ends the meeting."""
        try:
            message = peer.poll()
            if message is None:
                return True
        except EOFError:
            message = None
        pair = _pair(message.value) if message is not None else None
        if pair is not None and pair[0] == END and END not in self._values:
            with suppress(ArgumentError):
                said = MeetingMessage.read(pair[1].encode(), MAX_RANKS)
                if not (said.hosts or said.name or said.proven):
                    self.set(*pair)  # the rank gets its own message, too, before its connection ends
        peer.close()
        return False

    def _read(self, peer: PlainChannel) -> bool:
        """Take in rank 0's messages. False if it has gone, or sends what rank 0 would not."""
        with suppress(EOFError):
            while (message := peer.poll()) is not None:
                pair = _pair(message.value)
                if pair is None or (pair[0] == "rank 0" and not self._is_of(*pair, peer)):
                    return False
                self._values[pair[0]] = pair[1]
            return True
        return False

    def _is_of(self, key: str, value: str, peer: PlainChannel) -> bool:
        """Is the process there the process in its identity? Also true in another container: errors name the process."""
        try:
            identity = read_identity(int(key.removeprefix("rank ")), value.encode())
        except ArgumentError:
            return False
        return identity.namespaces != self._home.namespaces or identity.is_at(peer)

    def _send(self, peer: PlainChannel, key: str, value: str) -> None:
        with suppress(OSError):  # the peer has died, or is stopped, as the meeting will find
            peer.send((key, value), deadline=self._deadline)

    def close(self) -> None:
        """End the connections; rank 0's name is free again."""
        for peer in self._peers:
            peer.close()
        if self._newcomers is not None:
            self._newcomers.close()


def _pair(said: object) -> tuple[str, str] | None:
    """A message as a key and a value; None if it is no such pair."""
    match said:
        case [str(key), str(value)] if key in _OF_RANK_0 or re.fullmatch(_RANK, key):
            return key, value
    return None


class Newcomers:
    """Processes of this user that connect at a name. A process is taken in, or sent away, by its first message.

    silent: the connections without a message yet; the oldest are closed if there are too many.

    Raises OSError if another process has the name.
    """

    def __init__(self, name: str) -> None:
        self.listener = listen(name)
        self.silent: list[PlainChannel] = []

    @property
    def sockets(self) -> list[socket.socket | PlainChannel]:
        """What becomes readable when a process connects, or sends its first message."""
        return [self.listener, *self.silent]

    def first_messages(self) -> Iterator[tuple[PlainChannel, Any]]:
        """The connections that have sent their first message since the last time, each with its value."""
        with suppress(BlockingIOError, ConnectionAbortedError):
            for _ in range(WAITING):
                if (channel := accept(self.listener)) is not None:
                    self.silent.append(channel)
        came, self.silent = self.silent, []
        for channel in came:
            try:
                message = channel.poll()
            except (EOFError, OSError):
                channel.close()
                continue
            if message is None:
                self.silent.append(channel)
                continue
            for fd in message.fds:
                os.close(fd)
            yield channel, message.value
        for channel in self.silent[:-_MOST_SILENT]:
            channel.close()
        del self.silent[:-_MOST_SILENT]

    def close(self) -> None:
        """Stop listening, and close the silent connections."""
        self.listener.close()
        for channel in self.silent:
            channel.close()
        self.silent = []
