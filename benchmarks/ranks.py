"""Ranks for benchmarks: on this host, or on hosts that are network namespaces of this machine, joined by a switch."""

import ctypes
import datetime
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import unisono
from unisono.base.errors import ArgumentError
from unisono.ranks.group.current import set_default
from unisono.ranks.rendezvous.identity import HOST_ID
from unisono.schedule import Hosts

from .runs import GLOO, OURS, Cell
from .turns import Rendezvous

_PORT = 29500
_CLONE_NEWNET = 0x40000000


class Place(NamedTuple):
    """Where ranks run.

    labels: what a table says of it. rate: of each link between hosts, both ways, such as `1gbit`; `none`: no limit;
    "": all ranks are on this host. busy: the number of background processes.
    """

    labels: dict[str, Cell]
    hosts: Hosts
    rate: str
    busy: int


def places(ranks: str, hosts: str, rates: str, busy: str) -> list[Place]:
    """All combinations of these options, whose values are separated by commas. hosts: in place of ranks."""
    found = []
    for count, shape, rate in product(ranks.split(","), hosts.split(","), rates.split(",") if hosts else [""]):
        if not shape and (not count.isdigit() or int(count) < 2):
            raise ArgumentError(f"{count!r} ranks cannot be compared: give numbers from 2 on, such as 2,4")
        link = "no limit" if rate == "none" else rate
        labels: dict[str, Cell] = {"hosts": shape, "link": link} if shape else {"ranks": int(count)}
        for number in map(int, busy.split(",")):
            more: dict[str, Cell] = {"background processes": number} if busy != "0" else {}
            found.append(Place(labels | more, Hosts.parse(shape) if shape else Hosts.one(int(count)), rate, number))
    return found


class Groups:
    """Two process groups of torch.distributed over the same ranks.

    meet: a barrier that uses neither. spaces: the namespace of each rank's host.
    """

    def __init__(self, folder: str, spaces: Sequence[str], rate: str) -> None:
        rank, ranks = unisono.get_rank(), unisono.get_world_size()
        torch.set_num_threads(1)
        meeting = f"file://{folder}/torch"
        if spaces:
            _enter(spaces[rank])
            meeting = f"tcp://{address(0)}:{_PORT}"
            os.environ |= {HOST_ID: spaces[rank], "GLOO_SOCKET_IFNAME": "eth0"}
            os.environ |= {} if rate == "none" else {"UNISONO_LINK": rate}
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        patience = datetime.timedelta(seconds=120)
        dist.init_process_group("unisono", meeting, timeout=patience, rank=rank, world_size=ranks)
        self.contenders: dict[str, Any] = {OURS: dist.group.WORLD, GLOO: dist.new_group(backend="gloo")}
        self.meet = Rendezvous(Path(folder, "meet"), rank, ranks)


class Ranks:
    """A world whose ranks have Groups. It ends with `ends`. names: of the hosts' namespaces."""

    def __init__(self, place: Place, ends: ExitStack) -> None:
        folder = ends.enter_context(tempfile.TemporaryDirectory())
        self.names = ends.enter_context(_namespaces(place.hosts, place.rate)) if place.rate else []
        spaces = [self.names[place.hosts.host_of(rank)] for rank in range(place.hosts.ranks)] if place.rate else []
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the ranks: it warns of addresses without names
        self._world = ends.enter_context(unisono.world(place.hosts.ranks, timeout_s=600))
        self._args = folder, spaces, place.rate

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What function(groups, *args) returns on each of them."""
        return self._world.run(_with_groups, self._args, function, *args)


def _with_groups(made_of: tuple[str, list[str], str], function: Callable[..., Any], *args: Any) -> Any:
    folder, spaces, rate = made_of
    groups = _groups(folder, tuple(spaces), rate)
    if spaces:  # the world's own group takes all ranks for those of one host
        set_default(groups.contenders[OURS].group)
    return function(groups, *args)


_groups = functools.cache(Groups)


def address(host: int) -> str:
    """The address of a host, counted from 0."""
    return f"10.77.0.{host + 1}"


def _enter(space: str) -> None:
    """Move this thread, and those that it will start, to another namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", space).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {space}")


@contextmanager
def _namespaces(hosts: Hosts, rate: str) -> Iterator[list[str]]:
    """A namespace for each host, by name."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        raise ArgumentError("hosts are network namespaces: run this as root, with iproute2 installed")
    prefix = f"unisono-{os.getpid()}"
    switch, names = f"{prefix}-switch", [f"{prefix}-{host}" for host in range(len(hosts.members))]
    try:
        _call("ip", "netns", "add", switch)
        _call("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _call("ip", "-n", switch, "link", "set", "br0", "up")
        for host, name in enumerate(names):
            _call("ip", "netns", "add", name)
            _call("ip", "-n", name, "link", "set", "lo", "up")
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _call("ip", "-n", switch, "link", "add", f"p{host}", *ends)
            _call("ip", "-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
            _call("ip", "-n", name, "addr", "add", f"{address(host)}/24", "dev", "eth0")
            _call("ip", "-n", name, "link", "set", "eth0", "up")
            for space, link in ((name, "eth0"), (switch, f"p{host}")) if rate != "none" else ():
                limit = ("tbf", "rate", rate, "burst", "256k", "latency", "20ms")
                _call("tc", "-n", space, "qdisc", "add", "dev", link, "root", *limit)
        yield names
    finally:
        for name in (*names, switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
