"""Hosts in network namespaces of this machine, joined by a switch: real networks without real machines. Needs root.

Tests cut them off, and start programs on them.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
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
    if os.geteuid():
        return "hosts in network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"hosts in network namespaces need iproute2 ({tool} is not there)"
    probe = f"{_PREFIX}-{os.getpid()}-probe"
    try:
        _call("ip", "netns", "add", probe)
        _call("ip", "netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return f"this system makes no network namespace: {error.stderr.strip()}"
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
        _call("ip", "netns", "add", switch)
        _call("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _call("ip", "-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(self.names):
            _call("ip", "netns", "add", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _call("ip", "-n", switch, "link", "add", f"p{number}", *ends)
            _call("ip", "-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            _call("ip", "-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            with suppress(subprocess.CalledProcessError):  # this system has no IPv6
                _call("ip", "-n", name, "addr", "add", f"{self.address_v6(number)}/64", "dev", "eth0", "nodad")
            _call("ip", "-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    @staticmethod
    def address_v6(host: int) -> str:
        return f"fd77::{host + 1:x}"

    def rate(self, rate: str) -> None:
        """Limit every link, both ways, such as to `1gbit`."""
        for number, name in enumerate(self.names):
            for space, link in ((name, "eth0"), (self.switch, f"p{number}")):
                limit = ("rate", rate, "burst", "256k", "latency", "20ms")
                _call("tc", "-n", space, "qdisc", "add", "dev", link, "root", "tbf", *limit)

    def cut(self, host: int) -> None:
        """Pull a host's cable: at the switch, so that the host's own link stays up."""
        _call("ip", "-n", self.switch, "link", "set", f"p{host}", "nomaster")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        _call("ip", "-n", self.switch, "link", "set", f"p{host}", "master", "br0")

    def link_down(self, host: int) -> None:
        """Let a host have no network."""
        _call("ip", "-n", self.names[host], "link", "set", "eth0", "down")

    def link_up(self, host: int) -> None:
        """Let it have it again."""
        _call("ip", "-n", self.names[host], "link", "set", "eth0", "up")

    def cut_pair(self, one: int, other: int) -> None:
        """Let these two hosts not reach each other, while others reach both."""
        for here, there in ((one, other), (other, one)):
            _call("ip", "-n", self.names[here], "route", "add", "blackhole", f"{self.address(there)}/32")

    def mend_pair(self, one: int, other: int) -> None:
        """Let them reach each other again."""
        for here, there in ((one, other), (other, one)):
            _call("ip", "-n", self.names[here], "route", "del", "blackhole", f"{self.address(there)}/32")

    def processes(self, host: int) -> list[int]:
        return [int(pid) for pid in _call("ip", "netns", "pids", self.names[host]).split()]

    def start(
        self, host: int, *words: object, env: Mapping[str, object] | None = None, container: bool = False
    ) -> subprocess.Popen[str]:
        """Start a Python program on a host. It is killed with the cluster, together with what it has started.

        container: with process numbers of its own.
        """
        within = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if container else []
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            **{name: str(value) for name, value in (env or {}).items()},
        }
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *within, sys.executable, *map(str, words)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def finish(self, timeout_s: float = 110.0) -> list[str]:
        """What the programs have printed, when all have ended; they must have ended well."""
        said = [process.communicate(timeout=timeout_s) for process in self._processes]
        codes = [process.returncode for process in self._processes]
        assert not any(codes), (codes, said)
        return [out for out, _ in said]

    def close(self) -> None:
        """End the programs, and remove the hosts."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.communicate()
        self._remove()

    def _remove(self) -> None:
        for name in (*self.names, self.switch):
            if Path("/run/netns", name).exists():
                _call("ip", "netns", "del", name)


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
                _call("ip", "netns", "del", path.name)


def _call(*words: str) -> str:
    """Run a program that must end well; what it says."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
