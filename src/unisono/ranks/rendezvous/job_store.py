"""The store of a job that has no port: a file in memory, which rank 0 hands out through a Unix socket.

The socket is named after the job. It ends with rank 0's call of `init()`, and the file with the last process. Only
processes of this user receive the file: the kernel says whose process connects.
"""

import os
import select
import socket
import threading
import time
from contextlib import suppress
from hashlib import sha256

from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch's own __all__ omits it

from ...base.errors import ArgumentError
from ...base.fd_channel import accept, connect, listen
from ...engine.memory.meeting_page import waits, waits_still
from .rendezvous_messages import missing

_RETRY_S = 0.005
_SEND_S = 1.0

_made: dict[str, int] = {}  # job -> the file that this process has made as its rank 0
_files: dict[int, int] = {}  # inode -> file; never closed, because torch opens it by this number until the process ends


class JobServer:
    """Rank 0's end: makes the store of a job, and hands it out until `close`.

    Raises ArgumentError if another process is rank 0 of this job.
    """

    def __init__(self, job: str) -> None:
        try:
            self._listener = listen(_socket_of(job))
        except OSError as error:
            raise ArgumentError(f"another process is rank 0 of the job {job} already: {error}") from error
        if job not in _made:
            _made[job] = os.memfd_create("unisono-store", os.MFD_CLOEXEC)
        self.store = _store_in(os.dup(_made[job]))
        where = self._listener, _made[job]
        self._thread = threading.Thread(target=_serve, args=where, name="unisono hands out a store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop handing out; the socket's name is free again."""
        self._listener.shutdown(socket.SHUT_RDWR)  # also in processes that have been forked meanwhile
        self._thread.join()
        self._listener.close()


def _serve(listener: socket.socket, fd: int) -> None:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while not poller.poll()[0][1] & select.POLLHUP:
        try:
            if (channel := accept(listener)) is not None:  # else another user's
                channel.send(None, fds=[fd], deadline=time.monotonic() + _SEND_S)
                channel.close()
        except OSError:  # the process has left, or no descriptor is free
            time.sleep(_RETRY_S)


def job_store(job: str, rank: int, deadline: float) -> FileStore:
    """The store of this job, once rank 0 hands it out.

    Raises WaitTimeout if rank 0 does not come, ArgumentError if another user has the name of the socket.
    """
    began = time.monotonic()
    waits((0,), "to begin the meeting", f"the socket of job {job}")
    while True:
        with suppress(OSError, EOFError):  # rank 0 is late, or leaves
            channel = connect(_socket_of(job), deadline)
            try:
                if fds := channel.receive(min(deadline, time.monotonic() + _SEND_S)).fds:
                    return _store_in(fds[0])
            finally:
                channel.close()
        if time.monotonic() >= deadline:
            details = f" No process of this network namespace and user is rank 0 of the job {job}."
            raise missing((0,), rank, time.monotonic() - began, details)
        waits_still()
        time.sleep(_RETRY_S)


def _socket_of(job: str) -> str:
    """The name of the job's socket. It is hashed, because a name has at most 107 bytes."""
    return "unisono " + sha256(f"{os.getuid()} {job}".encode(errors="surrogatepass")).hexdigest()


def _store_in(fd: int) -> FileStore:
    """The store in a file. Takes the descriptor over."""
    known = _files.setdefault(os.fstat(fd).st_ino, fd)
    if known != fd:
        os.close(fd)
    return FileStore(f"/proc/self/fd/{known}")
