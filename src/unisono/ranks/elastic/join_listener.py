"""The join listener of a job: a Unix socket. Processes that want to take the places of ended ranks connect there.

Its name follows from the job's name. One rank listens; when this rank has gone, the next one listens under the same
name. The name is public. So the kernel says which process connects, and its request is JSON, read for numbers only.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from ...base.errors import ArgumentError
from ...base.fd_channel import Newcomers, PlainChannel
from ...engine.process.alive import start_ticks
from ..group.current import get_job
from ..rendezvous.launchers import find_job

ANY = -1
"""Stands for any free place."""
_MOST_REQUESTS = 128
"""The most processes that may wait for a place."""


@dataclass(frozen=True)
class JoinRequest:
    """A process that wants to join. rank: the place in the world that it wants."""

    channel: PlainChannel
    pid: int
    ticks: int
    rank: int

    def refuse(self, why: str) -> None:
        """Send the process away for good."""
        with suppress(OSError):
            self.channel.send(["refused", why])
        self.channel.close()

    @property
    def is_there(self) -> bool:
        """Does the process still wait? It sends no second message."""
        with suppress(EOFError, OSError):
            return self.channel.poll() is None
        return False


class JoinListener:
    """The listening end of the connections. Raises OSError if another process has the name."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._newcomers = Newcomers(socket_name(job))
        self._requests: list[JoinRequest] = []

    def wait(self, most_s: float) -> None:
        """Return when a process comes or goes, or after most_s seconds."""
        poller = select.poll()
        poller.register(self._newcomers.listener, select.POLLIN)
        for channel in (*self._newcomers.silent, *(request.channel for request in self._requests)):
            poller.register(channel, select.POLLIN)
        poller.poll(most_s * 1e3)

    def requests(self) -> Sequence[JoinRequest]:
        """The processes that have come and still wait, in this order."""
        for channel, message in self._newcomers.first_messages():
            self._hear(channel, message)
        waiting = []
        for request in self._requests:
            if request.is_there:
                waiting.append(request)
            else:
                request.channel.close()
        self._requests = waiting
        return tuple(waiting)

    def forget(self, request: JoinRequest) -> None:
        """Drop a request without closing its connection."""
        self._requests.remove(request)

    def close(self) -> None:
        """Stop listening. Waiting processes ask the next join listener."""
        self._newcomers.close()
        for request in self._requests:
            request.channel.close()
        self._requests = []

    def _hear(self, channel: PlainChannel, message: object) -> None:
        """Take in the request of a process, if its first message is one."""
        pid, ticks = channel.peer.pid, start_ticks(channel.peer.pid)
        match message:
            case ["join", int(rank), int(said)] if rank >= ANY and ticks and len(self._requests) < _MOST_REQUESTS:
                request = JoinRequest(channel, pid, ticks, rank)
                if said == pid:
                    self._requests.append(request)
                else:
                    request.refuse(f"process {said}, which is {pid} here, runs in another container than the ranks")
            case _:
                channel.close()


def socket_name(job: str) -> str:
    """The name of the socket for a job of this user."""
    return "unisono join " + sha256(f"{os.getuid()} {job}".encode()).hexdigest()


def job_name(named: str | None, environ: Mapping[str, str]) -> str:
    """The name of the job: the given one, or else a name that all processes of the run or launcher know.

    Raises ArgumentError if there is none.
    """
    if named or get_job():
        return f"named {named}" if named else get_job()
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        run = environ.get("TORCHELASTIC_RUN_ID", "")
        return f"meets at {environ['MASTER_ADDR']}:{environ['MASTER_PORT']} {run}"
    job = find_job(environ)
    if job is not None and not job.refusal:
        return f"job {job.name}"
    raise ArgumentError(
        "door: nothing in the environment says which job this is; pass the same name to unisono.grow() on its ranks, "
        "and to unisono.join() in processes that join it: door='training'"
    )
