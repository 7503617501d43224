"""Start a host's sentinel, tell it what it serves, and the addresses of the others."""

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
    from ...engine.memory.arena import Arena
    from ...schedule import Hosts

_BOOT = (
    "import sys; channel, arena, path = sys.argv[1:]; sys.path.append(path); "
    f"from {__package__}.main import main; main(int(channel), int(arena))"
)
_MOST_BYTES = 1000


class Sentinel:
    """The sentinel of a host, for the process that has started it. It goes on without this process.

    To make one starts its process, which takes some 30 ms until it serves: time for something else. The process ends
    when the last rank's process has ended or closed its `Far`, and if this process ends before it has called
    `introduce`.

    arena: the memory of the host.

    pid: the sentinel's process, once it serves.
    address: host and port at which other sentinels reach it, once it serves.
    """

    def __init__(self, arena: Arena) -> None:
        self._channel, theirs = socket.socketpair()
        self._start, self.pid, self.address = arena.start, 0, ("", 0)
        with theirs:
            fds = (theirs.fileno(), arena.fd)
            command = [sys.executable, "-I", "-S", "-c", _BOOT, *map(str, fds), str(Path(__file__).parents[3])]
            # A session of its own: neither Ctrl-C nor the end of a rank that leads a process group ends it.
            self._process = subprocess.Popen(
                command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def serve(
        self,
        hosts: Hosts,
        me: int,
        ranks: Mapping[int, tuple[int, int]],
        address: str,
        secret: bytes,
        name: str,
        silent_s: float,
        deadline: float | None = None,
    ) -> None:
        """Wait until it serves as the sentinel of host number `me`; then it waits to be introduced.

        Raises InternalError if the sentinel does not start.

        ranks: rank of this host -> its process and start time (`engine.process.alive.start_ticks`).
        address: the address of this host for other hosts; the sentinel listens there only.
        secret: 32 bytes that only the ranks of this job know.
        name: the socket at which it serves the ranks of this host (see `hosts.far`).
        silent_s: how long a host may be silent.
        """
        setup = {
            "hosts": hosts.members, "me": me, "ranks": [[rank, *process] for rank, process in ranks.items()],
            "start": self._start, "address": address, "secret": secret.hex(), "name": name, "silent_s": silent_s,
        }  # fmt: skip
        said = b""
        try:
            self._channel.settimeout(remaining(deadline))
            self._channel.sendall(json.dumps(setup).encode() + b"\n")
            while not said.endswith(b"\n") and (more := self._channel.recv(_MOST_BYTES)):
                said += more
            pid, host, port = json.loads(said)
        except (OSError, ValueError) as error:
            self.stop()
            raise InternalError(
                f"the sentinel of host {me} ({sys.executable}), at address {address}, could not start: standard error "
                "shows what it said"
            ) from error
        self._process.wait()  # the sentinel is its child
        self.pid, self.address = pid, (host, port)
        self._channel.settimeout(None)

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
        if not self.pid:
            self._process.kill()
        self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.stop()  # unless it has been introduced
