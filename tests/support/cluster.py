"""Hosts in network namespaces of this machine, joined by a switch: real networks without real machines. Needs root.

Tests cut them off, and start programs on them.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unisono.ranks.group.current import set_default
from unisono.ranks.group.group import Group
from unisono.ranks.group.world_group import world_group
from unisono.ranks.rendezvous.launchers import Launch
from unisono.ranks.rendezvous.meeting import Meeting
from unisono.ranks.rendezvous.stores import meeting_store
from unisono.schedule import Hosts

PORT = 29500  # where the ranks meet, on the first host

_PREFIX = "unisono"
_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Why this machine cannot have such hosts; "" if it can."""
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        for words in ("tc -Version", f"ip netns add {probe}", f"ip netns del {probe}"):
            _call(words)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        return f"hosts in network namespaces need root and iproute2: {getattr(error, 'stderr', error)}"
    return ""


class Cluster:
    """As many hosts as the map has, host k at 10.77.0.(k+1) and fd77::(k+1); to be closed. They are joined by a switch.

    names: of the hosts' namespaces. switch: that of the switch; host k's cable is its link `p{k}`.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._processes: list[subprocess.Popen[str]] = []
        prefix = f"{_PREFIX}-{os.getpid()}"
        self.switch = f"{prefix}-switch"
        self.names = [f"{prefix}-{number}" for number in range(len(hosts.members))]
        self._remove()
        _remove_leftovers()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise

    def _build(self) -> None:
        switch = self.switch
        _call(f"ip netns add {switch}")
        _call(f"ip -n {switch} link add br0 type bridge")
        _call(f"ip -n {switch} link set br0 up")
        for number, name in enumerate(self.names):
            _call(f"ip netns add {name}")
            _call(f"ip -n {name} link set lo up")
            _call(f"ip -n {switch} link add p{number} type veth peer name eth0 netns {name}")
            _call(f"ip -n {switch} link set p{number} master br0 up")
            _call(f"ip -n {name} addr add {self.address(number)}/24 dev eth0")
            with suppress(subprocess.CalledProcessError):  # this system has no IPv6
                _call(f"ip -n {name} addr add {self.address(number, 6)}/64 dev eth0 nodad")
            _call(f"ip -n {name} link set eth0 up")

    @staticmethod
    def address(host: int, version: int = 4) -> str:
        return f"10.77.0.{host + 1}" if version == 4 else f"fd77::{host + 1:x}"

    def rate(self, rate: str) -> None:
        """Limit every link, both ways, such as to `1gbit`."""
        for number, name in enumerate(self.names):
            for link in (f"{name} qdisc add dev eth0", f"{self.switch} qdisc add dev p{number}"):
                _call(f"tc -n {link} root tbf rate {rate} burst 256k latency 20ms")

    def cut(self, host: int, how: str = "cable") -> Callable[[], None]:
        """Take a way of this host. Returns what mends it.

        how: "cable": that to all others, at the switch, so that the host's own link stays up. "link": that link.
        "pair": the way to the host before it, while others reach both.
        """
        assert host or how != "pair"
        two = (host, host - 1), (host - 1, host)
        blackholes = [(self.names[here], f"blackhole {self.address(there)}/32") for here, there in two]
        ways = {
            "cable": [(self.switch, f"link set p{host} nomaster", f"link set p{host} master br0")],
            "link": [(self.names[host], "link set eth0 down", "link set eth0 up")],
            "pair": [(name, f"route add {hole}", f"route del {hole}") for name, hole in blackholes],
        }
        for name, cut, _ in ways[how]:
            _call(f"ip -n {name} {cut}")

        def mend() -> None:
            for name, _, mended in ways[how]:
                _call(f"ip -n {name} {mended}")

        return mend

    def processes(self, host: int) -> list[int]:
        return [int(pid) for pid in _call(f"ip netns pids {self.names[host]}").split()]

    def start(
        self, host: int, *words: object, env: Mapping[str, object] | None = None, container: bool = False
    ) -> subprocess.Popen[str]:
        """Start a Python program on a host. It is killed with the cluster, together with what it has started.

        container: with process numbers of its own.
        """
        within = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if container else []
        pipe, given = subprocess.PIPE, {name: str(value) for name, value in (env or {}).items()}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **given}
        command = ["ip", "netns", "exec", self.names[host], *within, sys.executable, *map(str, words)]
        process = subprocess.Popen(
            command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self._processes.append(process)
        return process

    def finish(self, timeout_s: float = 110.0) -> list[str]:
        """What the programs have printed, when all have ended; they must have ended well."""
        said = [process.communicate(timeout=timeout_s) for process in self._processes]
        codes = [process.returncode for process in self._processes]
        assert not any(codes), (codes, said)
        return [out for out, _ in said]

    def close(self) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.communicate()
        self._remove()

    def _remove(self) -> None:
        for name in (*self.names, self.switch):
            if Path("/run/netns", name).exists():
                _call(f"ip netns del {name}")


def enter(name: str) -> None:
    """Move this thread, and those that it will start, to another namespace."""
    with Path("/run/netns", name).open() as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def join(rank: int, hosts: Hosts, port: int, timeout_s: float = 100.0, address: str = "") -> tuple[Group, Any]:
    """The group of all ranks of these hosts, which becomes the default one, and the store at which they have met.

    address: of rank 0's host; "": in the cluster.
    """
    launch = Launch(rank, hosts.ranks, "", address or Cluster.address(hosts.host_of(0)), port)
    with meeting_store(launch, time.monotonic() + timeout_s) as store:
        group = world_group(Meeting(rank, launch.size, store, timeout_s).hold(), rank)
    set_default(group)
    return group, store


def _remove_leftovers() -> None:
    """Remove hosts of processes that were killed."""
    for path in Path("/run/netns").glob(f"{_PREFIX}-*-*"):
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            with suppress(subprocess.CalledProcessError):  # another process was faster
                _call(f"ip netns del {path.name}")


def _call(words: str) -> str:
    """Run a program that must end well; what it says."""
    return subprocess.run(words.split(), check=True, capture_output=True, text=True).stdout
