"""The key-value stores where launched ranks meet: torch's, or where the launcher gives no port a `SocketStore`."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from ..channel import LONGEST_S
from ..errors import ArgumentError, WaitTimeout
from .addresses import own_addresses, reachable
from .launch import Launch
from .socket_store import SocketStore

if TYPE_CHECKING:
    from torch.distributed import Store as TorchStore  # type: ignore[attr-defined]  # torch's own __all__ omits it
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["Store", "meeting_number", "open_store"]

Store: TypeAlias = "TorchStore | SocketStore"

_ASK_S = 0.001
_MOST_BYTES = 4096
_LOOPBACK = "127.0.0.1"


def open_store(launch: Launch, timeout_s: float) -> Store:
    """The store where this launch's ranks meet, to be kept as long as they may need it: rank 0 may be its server.

    Raises WaitTimeout where rank 0 does not come, ArgumentError where its address, or the job's name, is taken, and
    where the ranks would have to ask an MPI that is not there.
    """
    if launch.job:
        return SocketStore(launch.job, launch.rank, timeout_s)
    # Imported late: torch.distributed takes a second, which only launched ranks pay.
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    store: TorchStore = _by_mpi(launch, timeout_s) if launch.by_mpi else _at_address(launch, timeout_s)
    store = PrefixStore(launch.prefix, store)
    return PrefixStore(f"{meeting_number(store, launch.rank)}", store)


def _at_address(launch: Launch, timeout_s: float) -> TorchStore:
    start, serve = time.monotonic(), launch.rank == 0 and not launch.store_runs
    try:
        return _tcp_store(launch.address, launch.port, launch.size, timeout_s, serve=serve)
    except RuntimeError as error:
        where = f"MASTER_ADDR={launch.address}, MASTER_PORT={launch.port}"
        if serve:
            raise ArgumentError(f"rank 0 cannot listen at {where}: {error}") from error
        details = f" It should listen at {where}: {error}."
        raise WaitTimeout("init()", time.monotonic() - start, (0,), launch.rank, details) from error


def _tcp_store(address: str, port: int, size: int, timeout_s: float, *, serve: bool) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(
        address,
        port,
        size,
        serve,
        timedelta(seconds=min(LONGEST_S, timeout_s)),
        wait_for_workers=False,
        multi_tenant=True,  # so that a process group of torch can use the same port later
    )


def _by_mpi(launch: Launch, timeout_s: float) -> TorchStore:
    """Rank 0 makes a store at a port that is free, and tells by MPI where."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ArgumentError(
            f"{launch.why}, on several hosts, and without mpi4py ({error}) nothing tells the ranks where to meet: "
            "install it, or set MASTER_ADDR, to an address of rank 0's host, and MASTER_PORT for every process"
        ) from error
    comm, start = MPI.COMM_WORLD, time.monotonic()
    if (comm.rank, comm.size) != (launch.rank, launch.size):
        raise ArgumentError(
            f"{launch.why}, but mpi4py takes this process for rank {comm.rank} of {comm.size}: it has been built for "
            "another MPI. Build it for this one, or set MASTER_ADDR and MASTER_PORT for every process"
        )
    store: TCPStore | None = None
    told = bytearray(_MOST_BYTES)
    if launch.rank == 0:
        store = _tcp_store(_LOOPBACK, 0, launch.size, timeout_s, serve=True)
        words = json.dumps([own_addresses(), store.port]).encode()
        told[: len(words)] = words
    request = comm.Ibcast(told)
    while not request.Test():  # a blocking call would not hear Ctrl-C
        if time.monotonic() - start > timeout_s:
            raise WaitTimeout("init()", time.monotonic() - start, (0,), launch.rank, " It has not called MPI.")
        time.sleep(_ASK_S)
    if store is None:
        addresses, port = json.loads(bytes(told).rstrip(b"\0"))
        address = reachable([*addresses, _LOOPBACK], port)
        if not address:
            details = f" It should listen at one of {', '.join(addresses)}, port {port}, none of which can be reached."
            raise WaitTimeout("init()", time.monotonic() - start, (0,), launch.rank, details)
        store = _tcp_store(address, port, launch.size, timeout_s, serve=False)
    return store


def meeting_number(store: TorchStore, rank: int) -> int:
    """How many meetings this rank has held at this store, with this one; it is the same on all ranks.

    In the keys of a meeting, it keeps them apart from what earlier meetings have left.
    """
    return store.add(f"unisono meetings of rank {rank}", 1)
