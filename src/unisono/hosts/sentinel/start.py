"""Start a host's sentinel, and tell it what it serves."""

import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from ...base.errors import InternalError
from ...base.fd_channel import listen
from ...base.linux import fill_standard_streams
from ...engine.memory.arena import Arena
from ...schedule import Hosts
from ..addresses import resolve
from .estate import Estate

_BOOT = (
    "import os, sys; os.fork() and os._exit(0); "  # so the process that starts it need not wait for its end
    "channel, arena, path = sys.argv[1:]; sys.path.append(path); "
    f"from {__package__}.main import main; main(int(channel), int(arena))"
)
_BURST_BYTES = 16 * 2304
"""What another host may send at once: datagrams, each with the memory that Linux counts for it."""


class Sentinel:
    """The sentinel of a host, for the process that has started it. It goes on without this process.

    To make one starts its process. No rank waits for it: ranks connect to a socket that this process has made, and what
    they say waits there. The sentinel ends when the last rank's process has ended or closed its `Far`, and if this
    process ends before it has called `serve`.

    arena: the memory of the host.
    """

    def __init__(self, arena: Arena) -> None:
        fill_standard_streams()
        self._channel, theirs = socket.socketpair()
        self._start, self._sockets = arena.start, list[socket.socket]()
        with theirs:
            fds = (theirs.fileno(), arena.fd)
            command = [sys.executable, "-I", "-S", "-c", _BOOT, *map(str, fds), str(Path(__file__).parents[3])]
            # A session of its own: neither Ctrl-C nor the end of a rank that leads a process group ends it.
            self._process = subprocess.Popen(
                command, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            )

    def listen(self, name: str, address: str) -> tuple[str, int]:
        """Listen to ranks of this host at the socket `name`, and to other sentinels at this address of the host only.

        Returns host and port at which other sentinels reach it. Raises InternalError if the host has no such address.
        """
        try:
            family, kind, protocol, _, at = resolve(address, 0, socket.SOCK_DGRAM)[0]
            udp = socket.socket(family, kind, protocol)
            self._sockets = [listen(name, socket.SOCK_SEQPACKET), udp]
            udp.setblocking(False)
            udp.bind(at)
        except OSError as error:
            raise InternalError(f"the sentinel of this host cannot listen at {address}: {error}") from error
        host, port, *_ = udp.getsockname()
        return host, port

    def serve(
        self,
        hosts: Hosts,
        me: int,
        ranks: Mapping[int, tuple[int, int]],
        addresses: Sequence[tuple[str, int]],
        secret: bytes,
        silent_s: float,
        *,
        names: Sequence[str] = (),
    ) -> None:
        """Let it serve as the sentinel of host number `me`. It must listen already.

        Raises InternalError if the sentinel has not started.

        ranks: rank of this host -> its process and start time (`engine.process.alive.start_ticks`).
        addresses: of the sentinels of all hosts, in order, its own, too.
        secret: 32 bytes that only the ranks of this job know.
        silent_s: how long a host may be silent.
        names: the hosts' names for messages; by default their addresses.
        """
        setup = {
            "hosts": hosts.members, "me": me, "ranks": [[rank, *process] for rank, process in ranks.items()],
            "start": self._start, "addresses": list(addresses), "secret": secret.hex(), "silent_s": silent_s,
            "names": list(names) or [host for host, _ in addresses],
        }  # fmt: skip
        _make_room(self._sockets[-1], len(addresses))
        try:
            with closing(Estate.create(setup)) as estate:
                self.hand_over(*(one.fileno() for one in self._sockets), estate.fd)
        except OSError as error:
            self.stop()
            raise InternalError(
                f"the sentinel of host {me} ({sys.executable}) could not start. Standard error has its output."
            ) from error

    def hand_over(self, *fds: int) -> None:
        """Let it serve with these descriptors: of its two sockets and of its estate. Raises OSError."""
        socket.send_fds(self._channel, [b"\n"], fds)
        self._close()
        # The process that has been started ends as soon as it has made the sentinel, its child.
        threading.Thread(target=self._process.wait, name="unisono starts a sentinel", daemon=True).start()

    def stop(self) -> None:
        """End it, unless it has been told to serve: then only wait until it has started."""
        self._close()
        self._process.wait()

    def _close(self) -> None:
        for one in (self._channel, *self._sockets):
            one.close()

    def __del__(self) -> None:
        if hasattr(self, "_process") and self._channel.fileno() >= 0:
            self.stop()


def start_again(arena: Arena, name: str, udp: int, estate: int) -> None:
    """Start a sentinel where both processes of one have been killed. udp, estate: descriptors that its ranks keep.

    Raises OSError if a process listens at the name: then another rank starts one.
    """
    with listen(name, socket.SOCK_SEQPACKET) as listener:
        Sentinel(arena).hand_over(listener.fileno(), udp, estate)


def _make_room(udp: socket.socket, hosts: int) -> None:
    """Let a socket keep what all these hosts may send at once, and warn if the system keeps less."""
    needed, given = hosts * _BURST_BYTES, (socket.SOL_SOCKET, socket.SO_RCVBUF)
    if udp.getsockopt(*given) < needed:
        udp.setsockopt(*given, needed // 2)  # Linux doubles it
    if (room := udp.getsockopt(*given)) < needed:
        warnings.warn(
            f"the socket of a sentinel has a buffer of {room} bytes, but {hosts} hosts may send {needed} at once; lost "
            f"messages are sent again later. Set net.core.rmem_max to {needed // 2} or more.",
            RuntimeWarning,
            stacklevel=3,
        )
