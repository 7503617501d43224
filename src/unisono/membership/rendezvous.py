"""How processes that a launcher started find each other and come to share one arena.

They meet at a key-value store, where each says who it is: torch's, or where the launcher gives no port a `SocketStore`.
Rank 0 checks that all ranks can share memory, makes the arena, and publishes the random name of a Unix socket, through
which it hands the arena's file descriptor to the others: a descriptor arrives only within one host.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from ..channel import remaining
from ..config import Config
from ..engine.arena import Arena
from ..errors import ArgumentError, WaitTimeout
from .identity import Identity, why_apart
from .launch import Launch
from .socket_store import SocketStore, accept, connect, listen

if TYPE_CHECKING:
    from torch.distributed import Store as TorchStore  # type: ignore[attr-defined]  # torch's own __all__ omits it

    Store = TorchStore | SocketStore

__all__ = ["meet", "meeting_number", "open_store"]

_ASK_S = 0.005


def open_store(launch: Launch, timeout_s: float) -> Store:
    """The store where this launch's ranks meet, to be kept as long as they may need it: rank 0 may be its server.

    Raises WaitTimeout where rank 0 does not come, ArgumentError where its address, or the job's name, is taken.
    """
    if launch.job:
        return SocketStore(launch.job, launch.rank, timeout_s)
    # Imported late: torch.distributed takes a second, which only launched ranks pay.
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    start, serve = time.monotonic(), launch.rank == 0 and not launch.store_runs
    try:
        store: TorchStore = TCPStore(
            launch.address,
            launch.port,
            launch.size,
            serve,
            timedelta(seconds=timeout_s),
            wait_for_workers=False,
            multi_tenant=True,  # so that a process group of torch can use the same port later
        )
    except RuntimeError as error:
        where = f"MASTER_ADDR={launch.address}, MASTER_PORT={launch.port}"
        if serve:
            raise ArgumentError(f"rank 0 cannot listen at {where}: {error}") from error
        details = f" It should listen at {where}: {error}."
        raise WaitTimeout("init()", time.monotonic() - start, (0,), launch.rank, details) from error
    store = PrefixStore(launch.prefix, store)
    return PrefixStore(f"{meeting_number(store, launch.rank)}", store)


def meeting_number(store: TorchStore, rank: int) -> int:
    """How many meetings this rank has held at this store, with this one; it is the same on all ranks.

    In the keys of a meeting, it keeps them apart from what earlier meetings have left.
    """
    return store.add(f"unisono meetings of rank {rank}", 1)


def meet(rank: int, size: int, store: Store, timeout_s: float, config: Config | None = None) -> Arena:
    """The arena of the `size` ranks that meet at this store.

    Raises WaitTimeout, naming the ranks that did not come, and ArgumentError on every rank where they cannot share
    memory: several hosts, containers or users, or threads of one process.
    """
    meeting = _Meeting(rank, size, store, timeout_s)
    return meeting.host(config) if rank == 0 else meeting.join()


class _Meeting:
    def __init__(self, rank: int, size: int, store: Store, timeout_s: float) -> None:
        self._rank, self._size, self._store = rank, size, store
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._identity = Identity.mine()
        store.set(f"rank {rank}", json.dumps(asdict(self._identity)))

    def host(self, config: Config | None) -> Arena:
        """Rank 0's part: gather the identities, judge them, hand the arena out."""
        identities = {0: self._identity}
        for rank in range(1, self._size):
            try:
                identities[rank] = Identity(**json.loads(self._get(f"rank {rank}")))
            except WaitTimeout as error:
                self._store.set("verdict", json.dumps({"missing": error.missing}))
                raise
            if reason := why_apart(identities):
                self._store.set("verdict", json.dumps({"reason": reason}))
                raise ArgumentError(reason)
        name = f"unisono-{secrets.token_hex(16)}"
        arena = Arena.create(self._size, config)
        try:
            with listen(name) as listener:
                self._store.set("verdict", json.dumps({"name": name}))
                missing = set(range(1, self._size))
                while missing:
                    try:
                        channel = accept(listener, remaining(self._deadline))
                        if channel is None:
                            continue
                        with closing(channel):
                            channel.send(None, fds=[arena.fd], deadline=self._deadline)
                            missing.discard(channel.receive(self._deadline).value)
                    except TimeoutError as error:
                        raise self._timeout(sorted(missing)) from error
                    except (EOFError, ConnectionError):
                        continue  # it died: the deadline will name it
        except BaseException:
            arena.close()
            raise
        return arena

    def join(self) -> Arena:
        """Everybody else's part: wait for the verdict, fetch the descriptor."""
        verdict = json.loads(self._get("verdict"))
        if "reason" in verdict:
            raise ArgumentError(verdict["reason"])
        if "missing" in verdict:
            raise self._timeout(verdict["missing"])
        try:
            with closing(connect(verdict["name"], self._deadline)) as channel:
                arena = Arena.attach(channel.receive(self._deadline).fds[0])
                channel.send(self._rank, deadline=self._deadline)
        except (EOFError, OSError) as error:
            raise self._timeout([0]) from error
        return arena

    def _get(self, key: str) -> bytes:
        """What the store has under a key, once it is there. Polls: the `wait` of torch's stores ignores Ctrl-C."""
        try:
            while not self._store.check([key]):
                if time.monotonic() >= self._deadline:
                    raise self._timeout(self._absent())
                time.sleep(_ASK_S)
            return self._store.get(key)
        except RuntimeError as error:
            raise self._timeout([0], f" The store where the ranks meet has gone: {error}.") from error

    def _absent(self) -> list[int]:
        """Who has not come yet; rank 0, whose verdict is missing, if all have."""
        return [rank for rank in range(self._size) if not self._store.check([f"rank {rank}"])] or [0]

    def _timeout(self, missing: list[int], details: str = "") -> WaitTimeout:
        return WaitTimeout("init()", time.monotonic() - self._start, missing, self._rank, details)
