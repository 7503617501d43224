"""The identity of a rank: its process, its host, and the settings that it must have in common with the others."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from ...base.fd_channel import Channel
from ...base.release import __version__
from ...engine.process.alive import start_ticks

HOST_ID = "UNISONO_HOST_ID"
"""The environment variable that tells apart hosts that look alike, or makes several hosts of one."""


MOST_NAME = 32
"""Characters of a host's short name: a thousand of them go into one message."""


class Identity(NamedTuple):
    """Decides whether two processes can share memory, and whether they can be ranks of one group at all."""

    host: str
    """Its name, for messages."""
    boot: str
    namespaces: str
    """Network and process-id namespaces: abstract sockets and process ids are valid within one only."""
    user: int
    pid: int
    ticks: int
    """When the process started: see `engine.process.alive.start_ticks`."""
    host_id: str = ""
    version: str = __version__
    byte_order: str = sys.byteorder
    common: str = ""
    """The settings that ranks must have in common."""
    address: str = ""
    """The address where other hosts reach it."""

    @classmethod
    def mine(cls) -> Identity:
        """This process's identity, without settings and address."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
        process = os.getuid(), os.getpid(), start_ticks(os.getpid())
        return cls(socket.gethostname(), boot, namespaces, *process, os.environ.get(HOST_ID, ""))

    @property
    def place(self) -> tuple[str, str, int, str]:
        """Equal for processes that may share memory. Only a try shows whether they can."""
        return self.boot, self.namespaces, self.user, self.host_id

    @property
    def network(self) -> tuple[str, str]:
        """Equal for processes that reach each other at 127.0.0.1."""
        return self.boot, self.namespaces.partition(" ")[0]

    @property
    def name(self) -> str:
        """A short name of its host; other hosts may have the same: see `ranks.rendezvous.topology.host_names`."""
        return f"{self.host}/{self.host_id}"[:MOST_NAME] if self.host_id else self.host[:MOST_NAME]

    @property
    def where(self) -> str:
        """The host, in words."""
        return f"host {self.host}" + (f", {HOST_ID}={self.host_id}" if self.host_id else "")

    def is_at(self, channel: Channel) -> bool:
        """Is this process at the other end, and not a later one of the same number? Only within one container."""
        return channel.peer == (self.pid, self.user) and start_ticks(self.pid) == self.ticks
