"""The key-value stores of torch where launched ranks meet: at an address, or in a file of their job.

The store of a job without a port is a file in memory. Rank 0 hands it out through a Unix socket that is named after the
job. The socket ends with rank 0's call of `init()`, and the file with the last process. Only processes of this user
receive the file: the kernel says whose process connects.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from torch.distributed import FileStore, PrefixStore, Store, TCPStore

from ...base.errors import ArgumentError, UnisonoError, WaitTimeout
from ...base.fd_channel import LONGEST_S, accept, connect, listen
from ...hosts.addresses import own_addresses, try_to_reach
from ...observe.live.meeting_page import waits, waits_still
from .asked_store import AskedStore, Limited
from .entries import read
from .identity import Identity
from .launchers import Launch
from .meeting import NOTICE
from .rendezvous_messages import missing

_ASK_S, _NAP_S = 0.001, 0.005
_RETRY_S = 0.05
_MOST_BYTES = 4096
_LOOPBACK = "127.0.0.1"
_NO_WAY_S = 30.0
"""How long a rank tries to resolve a name, or to find a way to a host: networks and their names may come up late."""
_ANSWER_S = 3.0  # how long a process at rank 0's port may take to answer
_SEND_S = 1.0
_TRY_S = 1.0  # how long the last try may take, when the time is up already


@contextmanager
def meeting_store(launch: Launch, deadline: float) -> Iterator[Store]:
    """The store where the ranks of a launch meet. Keep it as long as they may need it: rank 0 may be its server.

    Raises WaitTimeout if rank 0 does not come. Raises ArgumentError if rank 0's host has no address, or cannot be
    reached; if another job uses its port, or the job's name; and if the ranks would have to ask an MPI that is not
    there.
    """
    with ExitStack() as until_met:
        if launch.job and launch.rank:
            store: Store = job_store(launch.job, launch.rank, deadline)
        elif launch.job:
            store = until_met.enter_context(serving(launch.job))
        elif launch.by_mpi:
            store = _by_mpi(launch, deadline)
        else:
            store = _at_address(launch, [launch.address], launch.port, deadline)
        yield PrefixStore(launch.prefix, store)


def _at_address(launch: Launch, addresses: list[str], port: int, deadline: float) -> Store:
    """Rank 0's store, at the first of these addresses that leads to it; or make it, as rank 0."""
    start, serve = time.monotonic(), launch.rank == 0 and not launch.store_runs
    waits((0,), "to listen", f"{addresses[0]}:{port}")
    address = _find_a_way(launch.rank, addresses, port, deadline, serve=serve)
    where = f"MASTER_ADDR={address}, MASTER_PORT={port}"
    try:
        return tcp_store(address, port, launch.size, deadline, serve=serve)
    except RuntimeError as error:
        cause = str(error).partition("\n")[0]
        if serve:
            is_taken = "EADDRINUSE" in str(error)
            cause = (is_taken and _whose(launch)) or cause
            advice = " Give each job its own port." if is_taken else ""
            raise ArgumentError(f"rank 0 cannot listen at {where}: {cause}.{advice}") from error
        details = f" It should listen at {where}: {cause}."
    except TimeoutError:
        details = f" A process listens at {where}, but does not respond as rank 0's store: it may be another program."
        if cause := try_to_reach(address, port)[1]:
            details = f" It should listen at {where}: {cause}."
        if serve:
            details = f" Rank 0 listens at this port, but MASTER_ADDR={address} does not lead to it."
    raise missing((0,), launch.rank, time.monotonic() - start, details)


def _whose(launch: Launch) -> str:
    """The job that meets at this launch's address already, in words; "" if it is not known."""
    deadline = time.monotonic() + _ANSWER_S
    with suppress(RuntimeError, TimeoutError, UnisonoError):
        store = tcp_store(launch.address, launch.port, launch.size, deadline, serve=False)
        with closing(AskedStore(PrefixStore(launch.prefix, store), 0, deadline)) as asked:
            if said := asked.value(NOTICE, 1.0):  # its rank 0 may have begun just now
                first = read(Identity, said, 0)
                job = f"job {first.job!r}" if first.job else "another job"
                return f"{job}, whose rank 0 is {first.who}, uses this port"
    return ""


def _find_a_way(rank: int, addresses: list[str], port: int, deadline: float, *, serve: bool) -> str:
    """The first address at which a process listens, as soon as one does. serve: only wait until it can be resolved."""
    began = no_way_since = time.monotonic()
    where = " or ".join(addresses)
    with closing(Limited()) as thread:
        while True:
            until, causes, no_way = max(min(deadline, no_way_since + _NO_WAY_S), time.monotonic() + _TRY_S), [], True
            for address in addresses:
                there, cause = False, "the system does not say whether there is a way"
                with suppress(TimeoutError):
                    there, cause = thread.call(partial(try_to_reach, address, port), until)
                if there and (serve or not cause):
                    return address
                no_way &= not there or (address == _LOOPBACK and len(addresses) > 1)  # it leads to this host
                causes.append(cause)
            now, cause = time.monotonic(), "; ".join(causes)
            if not no_way:
                no_way_since = now
            elif now >= min(deadline, no_way_since + _NO_WAY_S):
                raise ArgumentError(
                    f"rank {rank} could not reach rank 0 at {where}, port {port}, in {now - no_way_since:.3g} s: "
                    f"{cause}. Set MASTER_ADDR, an address of rank 0's host that all hosts can reach, and MASTER_PORT "
                    "for every process."
                )
            if now >= deadline:
                details = f" It should listen at MASTER_ADDR={where}, MASTER_PORT={port}: {cause}."
                raise missing((0,), rank, now - began, details)
            waits_still()
            time.sleep(min(_RETRY_S, max(0.0, deadline - now)))


def tcp_store(
    address: str, port: int, size: int, deadline: float, *, serve: bool, look: Callable[[], object] = lambda: None
) -> TCPStore:
    """Raises TimeoutError if a process listens there, and has not answered by the deadline. look: see `Limited`."""
    left = timedelta(seconds=max(_RETRY_S, min(LONGEST_S, deadline - time.monotonic())))

    # Other programs may share the process's server: a process group of torch can use the same port later.
    how: Any = {"wait_for_workers": False, "multi_tenant": True}
    make = partial(TCPStore, address, port, size, serve, left, **how)
    with closing(Limited()) as thread:
        return thread.call(make, max(deadline, time.monotonic() + _RETRY_S), look)


def _by_mpi(launch: Launch, deadline: float) -> Store:
    """Rank 0 makes a store at a free port, and tells the others by MPI where."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ArgumentError(
            f"{launch.why}, on several hosts, but mpi4py, by which ranks would find each other, is missing ({error}). "
            "Install it, or set MASTER_ADDR, an address of rank 0's host, and MASTER_PORT for every process."
        ) from error
    comm, start = MPI.COMM_WORLD, time.monotonic()
    if (comm.rank, comm.size) != (launch.rank, launch.size):
        raise ArgumentError(
            f"{launch.why}, but in mpi4py this process is rank {comm.rank} of {comm.size}: it was built for another "
            "MPI. Build it for this one, or set MASTER_ADDR and MASTER_PORT for every process."
        )
    store: TCPStore | None = None
    told = bytearray(_MOST_BYTES)
    if launch.rank == 0:
        store = tcp_store(_LOOPBACK, 0, launch.size, deadline, serve=True)
        words = json.dumps([[*own_addresses(), _LOOPBACK], store.port]).encode()
        told[: len(words)] = words
    waits((0,), "to tell its address by MPI")
    request = comm.Ibcast(told)
    while not request.Test():  # a blocking call would not notice Ctrl-C
        if time.monotonic() > deadline:
            raise WaitTimeout("init()", time.monotonic() - start, (0,), launch.rank, " It has not called MPI.")
        waits_still()
        time.sleep(_ASK_S)
    if store is not None:
        return store
    addresses, port = json.loads(bytes(told).rstrip(b"\0"))
    return _at_address(launch, addresses, port, deadline)


_made: dict[str, int] = {}  # job -> the file that this process has made as its rank 0
_files: dict[int, int] = {}  # inode -> file; never closed, because torch opens it by this number until the process ends


@contextmanager
def serving(job: str) -> Iterator[FileStore]:
    """The store of a job, made by its rank 0, and handed out meanwhile.

    Raises ArgumentError if another process is rank 0 of this job.
    """
    try:
        listener = listen(_socket_of(job))
    except OSError as error:
        raise ArgumentError(
            f"another process is rank 0 of job {job} already: {error}. End that process, or give this job another name."
        ) from error
    if job not in _made:
        _made[job] = os.memfd_create("unisono-store", os.MFD_CLOEXEC)
    where = listener, _made[job]
    thread = threading.Thread(target=_serve, args=where, name="unisono hands out a store", daemon=True)
    thread.start()
    try:
        yield _store_in(os.dup(_made[job]))
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # also in processes that have been forked meanwhile
        thread.join()
        listener.close()


def _serve(listener: socket.socket, fd: int) -> None:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while not poller.poll()[0][1] & select.POLLHUP:
        try:
            if (channel := accept(listener)) is not None:  # else another user's
                channel.send(None, fds=[fd], deadline=time.monotonic() + _SEND_S)
                channel.close()
        except OSError:  # the process has left, or no descriptor is free
            time.sleep(_NAP_S)


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
            details = f" No process of this network namespace and user is rank 0 of job {job}."
            raise missing((0,), rank, time.monotonic() - began, details)
        waits_still()
        time.sleep(_NAP_S)


def _socket_of(job: str) -> str:
    """The name of the job's socket. It is hashed, because a name has at most 107 bytes."""
    return "unisono " + sha256(f"{os.getuid()} {job}".encode(errors="surrogatepass")).hexdigest()


def _store_in(fd: int) -> FileStore:
    """The store in a file. Takes the descriptor over."""
    known = _files.setdefault(os.fstat(fd).st_ino, fd)
    if known != fd:
        os.close(fd)
    return FileStore(f"/proc/self/fd/{known}")
