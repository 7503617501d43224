"""Which processes can share memory: same boot, same namespaces, same user, one process per rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..channel import Channel
from ..engine.process import start_ticks

__all__ = ["Identity", "why_apart"]


@dataclass(frozen=True)
class Identity:
    """What decides whether two processes can share memory, and whom to name where they cannot."""

    host: str
    boot: str
    namespaces: str
    """Network and process-id namespaces: abstract sockets and process ids are valid within one only."""
    user: int
    pid: int
    ticks: int
    """When the process started: see `engine.process.start_ticks`."""

    @classmethod
    def mine(cls) -> Identity:
        """This process's identity."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
        return cls(socket.gethostname(), boot, namespaces, os.getuid(), os.getpid(), start_ticks(os.getpid()))

    def is_at(self, channel: Channel) -> bool:
        """Is this process, and no later one of the same number, at the other end? Only within one container."""
        return channel.peer == (self.pid, self.user) and start_ticks(self.pid) == self.ticks


def why_apart(identities: Mapping[int, Identity]) -> str:
    """Why these ranks cannot form a group, naming the first that does not fit; empty if they can."""
    home = identities[0]
    ranks_by_pid: dict[int, int] = {}
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
        twin = ranks_by_pid.setdefault(other.pid, rank)
        if twin != rank:
            return (
                f"ranks {twin} and {rank} are the same process (pid {other.pid}): threads cannot be ranks. Start one "
                "process per rank, with unisono.run() or torchrun."
            )
    return ""
