"""Several hosts on this machine, as far as sentinels know: an arena and a sentinel each, over loopback.

Of each host, the first rank is this process, which so sees the memory of all of them; the others are processes that
only sleep, to be killed and stopped.
"""

import os
import secrets
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.support.waiting import until
from unisono.base.config import Config
from unisono.engine.memory.arena import Arena
from unisono.engine.process.alive import start_ticks
from unisono.hosts.far import Far
from unisono.hosts.sentinel.start import Sentinel
from unisono.schedule import Hosts

WORLD = 7  # the number of the group of all ranks


class FakeHosts(ExitStack):
    """Hosts such as `2x2`. Of each host: names of sockets, arenas, addresses of sentinels, far.

    sleepers: by rank.
    """

    def __init__(self, shape: str, *, silent_s: float = 1.5) -> None:
        super().__init__()
        self.hosts = Hosts.parse(shape)
        self.names = [secrets.token_hex(8) for _ in self.hosts.members]
        self.arenas: list[Arena] = []
        self.addresses: list[tuple[str, int]] = []
        self.far: list[Far] = []
        self.sleepers: dict[int, subprocess.Popen[bytes]] = {}
        with ExitStack() as failed:
            failed.push(self)  # an error closes what has begun
            secret = secrets.token_bytes(32)
            made: list[tuple[Sentinel, dict[int, tuple[int, int]]]] = []
            me = os.getpid(), start_ticks(os.getpid())
            for members in self.hosts.members:
                arena = Arena.create(self.hosts.ranks, Config(heap_bytes=4 << 20))
                self.callback(arena.close)
                ranks = {members[0]: me}
                for rank in members[1:]:
                    sleeper = self.sleepers[rank] = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                    self.callback(sleeper.wait)
                    self.callback(sleeper.kill)
                    ranks[rank] = sleeper.pid, start_ticks(sleeper.pid)
                sentinel = Sentinel(arena)
                self.callback(sentinel.stop)
                self.addresses.append(sentinel.listen(self.names[len(self.arenas)], "127.0.0.1"))
                self.arenas.append(arena)
                made.append((sentinel, ranks))
            names = [*"abcdefgh"[: len(made)]]
            for number, (sentinel, ranks) in enumerate(made):
                sentinel.serve(self.hosts, number, ranks, self.addresses, secret, silent_s, names=names)
            for number, members in enumerate(self.hosts.members):
                far = Far(self.arenas[number], self.hosts, members[0], self.names[number], silent_s)
                self.callback(far.close)
                self.far.append(far)
                sentinel_of(far)
                far.register(WORLD, self.arenas[number].start, range(self.hosts.ranks))
            failed.pop_all()

    def refresh(self, host: int, gid: int = WORLD) -> None:
        """Let a host ask the others what the ranks of a group have said, and wait for the answer."""
        ticket = self.far[host].ask(gid)
        until(lambda: self.far[host].answered(ticket))


def sentinel_of(far: Far) -> int:
    """The process of the sentinel, as soon as it serves."""
    until(lambda: far.sentinel_pid > 0)
    return far.sentinel_pid


def spare_of(pid: int) -> int:
    """The process that goes on in place of this sentinel if it is killed."""
    return until(lambda: _children(pid))[0]


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def send_with_spare(far: Far, number: int) -> None:
    """Send a signal to a sentinel, and to the process that would go on in its place."""
    pid = sentinel_of(far)
    os.kill(pid, signal.SIGSTOP)  # else it may make another one
    for one in (*_children(pid), pid):
        os.kill(one, number)
