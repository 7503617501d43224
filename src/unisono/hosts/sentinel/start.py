"""Start a host's sentinel, and tell it the addresses of the others."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import InternalError
from ...base.fd_channel import remaining

if TYPE_CHECKING:
    from ...schedule import Hosts

_BOOT = (
    "import sys; channel, arena, path = sys.argv[1:]; sys.path.append(path); "
    f"from {__package__}.main import main; main(int(channel), int(arena))"
)
_MOST_BYTES = 1000


class Sentinel:
    """The sentinel of a host, for the process that has started it. It goes on without this process.

    pid: the sentinel's process.
    address: host and port at which other sentinels reach it.
    """

    def __init__(self, channel: socket.socket, pid: int, address: tuple[str, int]) -> None:
        self._channel, self.pid, self.address = channel, pid, address

    @classmethod
    def start(
        cls,
        arena_fd: int,
        hosts: Hosts,
        me: int,
        ranks: Mapping[int, tuple[int, int]],
        address: str,
        secret: bytes,
        name: str,
        silent_s: float,
        deadline: float | None = None,
    ) -> Sentinel:
        """Start the sentinel of host number `me`; it waits to be introduced.

        The sentinel ends when the last rank's process has ended or closed its `Far`, and if this process ends before it
        has called `introduce`. Raises InternalError if the sentinel does not start.

        ranks: rank of this host -> its process and start time (`engine.process.alive.start_ticks`).
        address: the address of this host for other hosts; the sentinel listens there only.
        secret: 32 bytes that only the ranks of this job know.
        name: the socket at which it serves the ranks of this host (see `hosts.far`).
        silent_s: how long a host may be silent.
        """
        mine, theirs = socket.socketpair()
        with theirs:
            fds = (theirs.fileno(), arena_fd)
            command = [sys.executable, "-I", "-S", "-c", _BOOT, *map(str, fds), str(Path(__file__).parents[3])]
            # A session of its own: neither Ctrl-C nor the end of a rank that leads a process group ends it.
            done = subprocess.Popen(
                command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )
        setup = {
            "hosts": hosts.members, "me": me, "ranks": [[rank, *process] for rank, process in ranks.items()],
            "address": address, "secret": secret.hex(), "name": name, "silent_s": silent_s,
        }  # fmt: skip
        said = b""
        try:
            mine.settimeout(remaining(deadline))
            mine.sendall(json.dumps(setup).encode() + b"\n")
            while not said.endswith(b"\n") and (more := mine.recv(_MOST_BYTES)):
                said += more
            pid, host, port = json.loads(said)
        except (OSError, ValueError) as error:
            mine.close()
            done.kill()
            raise InternalError(
                f"the sentinel of host {me} ({sys.executable}), at address {address}, could not start: standard error "
                "shows what it said"
            ) from error
        finally:
            done.wait()
        mine.settimeout(None)
        return cls(mine, pid, (host, port))

    def introduce(self, addresses: Sequence[tuple[str, int]], names: Sequence[str] = ()) -> None:
        """Tell it the addresses of the sentinels of all hosts, in order, its own, too; then it begins.

        names: the hosts' names for messages; by default their addresses.
        """
        words = {"addresses": list(addresses), "names": list(names) or [host for host, _ in addresses]}
        try:
            self._channel.sendall(json.dumps(words).encode() + b"\n")
        finally:
            self._channel.close()

    def stop(self) -> None:
        """End it before it has been introduced: the ranks have not met."""
        self._channel.close()
