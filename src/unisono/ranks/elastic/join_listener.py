"""The door of a job: a Unix socket. Processes that want to take the places of ended ranks knock there.

Its name follows from the job's name. One rank looks after it; when this rank has gone, the next one opens the door
again. The name is public. So the kernel says which process knocks, and a knock is JSON, read for numbers only.
"""

from __future__ import annotations

import os
import select
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from ...base.errors import ArgumentError
from ...base.fd_channel import PlainChannel
from ...engine.process.alive import start_ticks
from ..group.current import get_door
from ..rendezvous.local_sockets import WAITING, accept, listen
from ..rendezvous.which_rank import find_job

ANY = -1
"""Stands for any free place."""
_MOST_SILENT = _MOST_KNOCKS = 128
"""The most connections that are kept: without a word yet, and waiting for a place."""
_SAY_S = 1.0


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
        """Does the process still wait, without another word?"""
        with suppress(EOFError, OSError):
            return self.channel.poll() is None
        return False


class JoinListener:
    """The door's end of the connections. Raises OSError if another process has the name."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._listener = listen(socket_name(job))
        self._silent: list[PlainChannel] = []
        self._knocks: list[JoinRequest] = []

    def wait(self, most_s: float) -> None:
        """Return when a process comes or goes, or after most_s seconds."""
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        for channel in (*self._silent, *(knock.channel for knock in self._knocks)):
            poller.register(channel, select.POLLIN)
        poller.poll(most_s * 1e3)

    def knocks(self) -> Sequence[JoinRequest]:
        """The processes that have come and still wait, in this order."""
        with suppress(BlockingIOError, ConnectionAbortedError):
            for _ in range(WAITING):
                if (channel := accept(self._listener)) is not None:
                    self._silent.append(channel)
        self._silent = [channel for channel in self._silent if not self._hear(channel)]
        waiting = []
        for knock in self._knocks:
            if knock.is_there:
                waiting.append(knock)
            else:
                knock.channel.close()
        self._knocks = waiting
        for channel in self._silent[:-_MOST_SILENT]:
            channel.close()
        del self._silent[:-_MOST_SILENT]
        return tuple(waiting)

    def forget(self, knock: JoinRequest) -> None:
        """Drop a knock without closing its connection."""
        self._knocks.remove(knock)

    def close(self) -> None:
        """Close the door. Waiting processes knock again at the next door."""
        self._listener.close()
        for channel in (*self._silent, *(knock.channel for knock in self._knocks)):
            channel.close()
        self._silent, self._knocks = [], []

    def _hear(self, channel: PlainChannel) -> bool:
        """Read what a process wants. False if it has sent nothing yet."""
        try:
            message = channel.poll()
        except (EOFError, OSError):
            channel.close()
            return True
        if message is None:
            return False
        for fd in message.fds:
            os.close(fd)
        pid, ticks = channel.peer.pid, start_ticks(channel.peer.pid)
        match message.value:
            case ["join", int(rank), int(said)] if rank >= ANY and ticks and len(self._knocks) < _MOST_KNOCKS:
                knock = JoinRequest(channel, pid, ticks, rank)
                if said == pid:
                    self._knocks.append(knock)
                else:
                    knock.refuse(f"process {said}, which is {pid} here, runs in another container than the ranks")
            case _:
                channel.close()
        return True


def socket_name(job: str) -> str:
    """The name of the socket for a job of this user."""
    return "unisono door " + sha256(f"{os.getuid()} {job}".encode()).hexdigest()


def job_name(named: str | None, environ: Mapping[str, str]) -> str:
    """The name of the job: the given one, or else a name that all processes of the run or launcher know.

    Raises ArgumentError if there is none.
    """
    if named or get_door():
        return f"named {named}" if named else get_door()
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
