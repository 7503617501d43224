"""How processes that a launcher started find each other and come to share one arena.

They meet at torch's key-value store, where each says who it is. Rank 0 looks whether all are on one host, makes the
arena, and publishes the random name of a Unix socket, through which it hands the arena's file descriptor to the others:
what proves that two ranks share a host is that the descriptor arrives.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Config
from ..engine.arena import Arena
from ..errors import ArgumentError, WaitTimeout
from .detect import Launch
from .transport import Channel, remaining

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

__all__ = ["Identity", "connect", "meet", "strangers"]

_ASK_S = 0.005
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Identity:
    """What decides whether two processes can share memory, and whom to name where they cannot."""

    host: str
    boot: str
    namespaces: str
    """Network and process-id namespaces: sockets without a file, and process ids, mean something in one only."""
    user: int
    pid: int

    @classmethod
    def mine(cls) -> Identity:
        """This process's."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
        return cls(socket.gethostname(), boot, namespaces, os.getuid(), os.getpid())


def strangers(identities: Mapping[int, Identity]) -> str:
    """Why these ranks cannot share memory, naming the first that cannot share it with rank 0; empty if they can."""
    home = identities[0]
    ranks: dict[int, int] = {}
    for rank, other in sorted(identities.items()):
        if other.boot != home.boot:
            return (
                f"rank {rank} runs on host {other.host}, rank 0 on {home.host}: all ranks of a group must run on one "
                "host. Start as many processes as this host should have ranks."
            )
        if other.namespaces != home.namespaces:
            return (
                f"rank {rank} (host name {other.host}) runs in another container than rank 0 ({home.host}): network "
                f"and process namespaces are {other.namespaces}, and {home.namespaces}. Let them share both."
            )
        if other.user != home.user:
            return f"rank {rank} runs as user {other.user}, rank 0 as user {home.user}: shared memory is for one user"
        if (first := ranks.setdefault(other.pid, rank)) != rank:
            return f"ranks {first} and {rank} are one process (pid {other.pid}): each rank must be a process of its own"
    return ""


def connect(launch: Launch, timeout_s: float, attempt: int) -> Store:
    """The store where this launch's ranks meet, to be kept as long as they may need it: rank 0 may be its server.

    attempt counts this process's meetings, and keeps the keys of each apart; all ranks have the same number of them.
    """
    # Imported late: torch.distributed takes a second, which only launched ranks pay.
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    start, serve = time.monotonic(), launch.rank == 0 and not launch.store_runs
    try:
        store = TCPStore(
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
    return PrefixStore(f"{launch.prefix}/{attempt}", store)


def meet(launch: Launch, store: Store, timeout_s: float, config: Config | None = None) -> Arena:
    """The arena of this launch's ranks.

    Raises WaitTimeout, naming the ranks that did not come, and ArgumentError on every rank where they are not all on
    one host.
    """
    meeting = _Meeting(launch, store, timeout_s)
    return meeting.host(config) if launch.rank == 0 else meeting.join()


class _Meeting:
    def __init__(self, launch: Launch, store: Store, timeout_s: float) -> None:
        self._launch, self._store = launch, store
        self._start = time.monotonic()
        self._deadline = self._start + timeout_s
        self._identity = Identity.mine()
        store.set(f"rank {launch.rank}", json.dumps(asdict(self._identity)))

    def host(self, config: Config | None) -> Arena:
        """Rank 0's part: gather, judge, hand out."""
        identities = {0: self._identity}
        for rank in range(1, self._launch.size):
            identities[rank] = Identity(**json.loads(self._get(f"rank {rank}")))
        if reason := strangers(identities):
            self._store.set("verdict", json.dumps({"reason": reason}))
            raise ArgumentError(reason)
        name = f"unisono-{secrets.token_hex(16)}"
        arena = Arena.create(self._launch.size, config)
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"\0{name}")
                listener.listen(self._launch.size)
                self._store.set("verdict", json.dumps({"name": name}))
                self._hand_out(listener, arena)
        except BaseException:
            arena.close()
            raise
        return arena

    def _hand_out(self, listener: socket.socket, arena: Arena) -> None:
        missing = set(range(1, self._launch.size))
        while missing:
            try:
                listener.settimeout(remaining(self._deadline))
                peer, _ = listener.accept()
                if _user_of(peer) != os.getuid():
                    peer.close()  # names of such sockets are public; somebody else has tried this one
                    continue
                with closing(Channel(peer)) as channel:
                    channel.send(None, fds=[arena.fd], deadline=self._deadline)
                    missing.discard(channel.receive(self._deadline).note)
            except TimeoutError as error:
                raise self._timeout(sorted(missing)) from error
            except (EOFError, ConnectionError):
                continue  # it died: the deadline will name it

    def join(self) -> Arena:
        """Everybody else's part: wait for the verdict, fetch the descriptor."""
        verdict = json.loads(self._get("verdict"))
        if "reason" in verdict:
            raise ArgumentError(verdict["reason"])
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(remaining(self._deadline))
                sock.connect(f"\0{verdict['name']}")
                if _user_of(sock) != os.getuid():
                    raise ArgumentError(f"the socket where rank 0 should wait belongs to user {_user_of(sock)}")
                channel = Channel(sock)
            with closing(channel):
                arena = Arena.attach(channel.receive(self._deadline).fds[0])
                channel.send(self._launch.rank, deadline=self._deadline)
        except (EOFError, OSError) as error:
            raise self._timeout([0]) from error
        return arena

    def _get(self, key: str) -> bytes:
        """What the store has under a key, once it is there. Asked again and again: its `wait` hears no Ctrl-C."""
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
        return [rank for rank in range(self._launch.size) if not self._store.check([f"rank {rank}"])] or [0]

    def _timeout(self, missing: list[int], details: str = "") -> WaitTimeout:
        return WaitTimeout("init()", time.monotonic() - self._start, missing, self._launch.rank, details)


def _user_of(sock: socket.socket) -> int:
    """The user of the process at the other end, by the kernel's account."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
