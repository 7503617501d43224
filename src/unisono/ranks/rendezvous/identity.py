"""The identity of a rank: its process, its host, and the settings that it must have in common with the others.

Identities show which ranks seem to share a host (`place`), why ranks cannot form a group (`why_refused`), and if a
group is slower than it might be (`remark`).
"""

import os
import socket
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from ...base.config import Config, environment_name
from ...base.dtype_codes import DTYPES_DIGEST
from ...base.fd_channel import Channel
from ...base.release import __version__
from ...engine.process.alive import start_ticks
from ...hosts.addresses import is_loopback
from ...schedule import Hosts

HOST_ID = "UNISONO_HOST_ID"
"""The environment variable that tells apart hosts that look alike, or makes several hosts of one."""

MOST_NAME = 32
"""Characters of a host's short name: a thousand of them go into one message."""

_COMMON = ("look_up_s", "link", "host_silence_s")
"""The settings that all ranks of several hosts must have in common. Each host has its own settings for calls inside it:
machines differ in their best settings.
"""
_ON_ONE_HOST = ("look_up_s",)  # the settings that all ranks must have in common, also if they are all on one host

_MOST_ADDRESS = len("255.255.255.255")
"""Characters of an address in a host's name. Longer ones do not appear in messages."""


@dataclass(frozen=True)
class Identity:
    """Decides whether two processes can share memory, and whether they can be ranks of one group at all."""

    host: str  # its name, for messages
    boot: str
    namespaces: str  # network and process-id namespaces: abstract sockets and process ids are valid within one only
    user: int
    pid: int
    ticks: int  # when the process started: see `engine.process.alive.start_ticks`
    host_id: str = ""
    version: str = __version__
    byte_order: str = sys.byteorder
    dtypes: str = DTYPES_DIGEST
    common: str = ""  # the settings that ranks must have in common
    address: str = ""  # the address where other hosts reach it

    def replace(self, **changes: Any) -> Self:
        """The same identity with other values of these fields."""
        return replace(self, **changes)

    @classmethod
    def mine(cls) -> "Identity":
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
        """A short name of its host; other hosts may have the same: see `host_names`."""
        return f"{self.host}/{self.host_id}"[:MOST_NAME] if self.host_id else self.host[:MOST_NAME]

    @property
    def where(self) -> str:
        """The host, in words."""
        return f"host {self.host}" + (f", {HOST_ID}={self.host_id}" if self.host_id else "")

    def is_at(self, channel: Channel) -> bool:
        """Is this process at the other end, and not a later one of the same number? Only within one container."""
        return channel.peer == (self.pid, self.user) and start_ticks(self.pid) == self.ticks


def place(identities: Mapping[int, Identity], apart: Collection[int] = ()) -> Hosts:
    """The hosts of all ranks: equal places are one host. apart: ranks that are each a host of their own."""
    names = [(identities[rank].place, rank if rank in apart else -1) for rank in range(len(identities))]
    return Hosts.of(names)


def host_names(identities: Mapping[int, Identity], hosts: Hosts) -> tuple[str, ...]:
    """A name for each host, for messages: its own name. Containers and copies of a machine may share a name: they get
    their addresses as well, or, if these do not differ, numbers.
    """
    firsts = [identities[members[0]] for members in hosts.members]
    addresses: dict[str, list[str]] = {}
    for one in firsts:
        addresses.setdefault(one.name, []).append(one.address)
    names = []
    for number, one in enumerate(firsts):
        known, tail = addresses[one.name], f" at {one.address}"
        if len(set(known)) < len(known) or any(is_loopback(each) or len(each) > _MOST_ADDRESS for each in known):
            tail = f"#{number}"
        names.append(one.name[: MOST_NAME - len(tail)] + tail if len(known) > 1 else one.name)
    return tuple(names)


def common_settings(config: Config) -> str:
    """The settings that ranks must have in common, as text in an identity."""
    link = f"{config.link.latency_s!r}:{config.link.bytes_per_s!r}"
    return f"{config.look_up_s!r} {link} {config.host_silence_s!r}"


def why_refused(identities: Mapping[int, Identity], apart: Collection[int] = ()) -> str:
    """Why the ranks that have come cannot form a group; "" if they can. Names the first rank that does not fit."""
    home = identities[0]
    processes: dict[tuple[object, ...], int] = {}
    spans = bool(apart) or any(other.place != home.place for other in identities.values())
    for rank, other in sorted(identities.items()):
        here, there = f"rank 0 ({_where(home, other)})", f"rank {rank} ({_where(other, home)})"
        for what, mine, its in (
            ("unisono", home.version, other.version),
            ("the byte order", home.byte_order, other.byte_order),
            ("the table of dtypes", home.dtypes, other.dtypes),
        ):
            if mine != its:
                return f"{there} has {what} {its}, {here} has {mine}: all ranks of a group must have the same"
        twin = processes.setdefault((other.place, other.pid, other.ticks), rank)
        if twin != rank:
            return (
                f"ranks {twin} and {rank} are the same process (pid {other.pid}): threads cannot be ranks. Start one "
                "process per rank, with unisono.run() or torchrun."
            )
        for name, its, mine in zip(_COMMON, other.common.split(), home.common.split(), strict=False):
            if its != mine and (spans or name in _ON_ONE_HOST):
                env = environment_name(name)
                return f"{there} has {name}={its}, {here} has {mine}: set {env} to the same for all ranks"
    return ""


def way_between(identities: Mapping[int, Identity]) -> tuple[str, str]:
    """An address that leads to other ranks, for a rank without one of its own; and why there is none. Each may be "".

    A rank's own address is a loopback address if the name of the meeting place means its own host there.
    """
    home = identities[0]
    other = next((one for one in identities.values() if one.network != home.network), None)
    if other is None:
        return "", ""
    known = next((one.address for one in identities.values() if not is_loopback(one.address)), "")
    if known:
        return known, ""
    return "", (
        f"rank 0 ({home.where}) and rank {next(rank for rank, one in identities.items() if one is other)} "
        f"({other.where}) meet at an address that leads either of them to itself only "
        f"({home.address or 'no network'}): set MASTER_ADDR to an address of rank 0's host that all hosts reach"
    )


def remark(identities: Mapping[int, Identity], hosts: Hosts, apart: Collection[int] = ()) -> str:
    """What to say once if ranks of one machine do not share memory, and the user has not asked for it; else ""."""
    for (first, *_), (rank, *_) in combinations(hosts.members, 2):
        home, other = identities[first], identities[rank]
        if (home.boot, home.host_id) == (other.boot, other.host_id):
            cause = f"as user {other.user}, not {home.user}"
            if home.namespaces != other.namespaces:
                cause = f"in another container: namespaces {other.namespaces}, not {home.namespaces}"
            if rank in apart:
                cause = f"where it cannot get the memory of that rank; if these are two machines, set {HOST_ID} on each"
            return (
                f"unisono: rank {rank} runs on the machine of rank {first}, but {cause}. They count as two hosts, "
                "which is slower than to share memory.\n"
            )
    return ""


def _where(one: Identity, other: Identity) -> str:
    """The host of one of two ranks, in words that do not fit the other rank's host, if it is another one."""
    return f"{one.where} at {one.address}" if one.where == other.where and one.address != other.address else one.where
