"""The identity of a rank: its process, its host, and the settings that it must have in common with the others.

Identities show which ranks share a host (`place`), that ranks can form a group (`check`), and if a group is slower than
it might be (`remark`).
"""

import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from ...base.config import Config, environment_name
from ...base.dtype_codes import DTYPES_DIGEST
from ...base.errors import ArgumentError
from ...base.fd_channel import Channel
from ...base.release import __version__
from ...engine.process.alive import start_ticks
from ...hosts.addresses import is_loopback
from ...schedule import Hosts
from .entries import MOST_NAME, MOST_TEXT

HOST_ID = "UNISONO_HOST_ID"
"""The environment variable that tells apart hosts that look alike, or makes several hosts of one."""

_OVER_HOSTS = ("link", "host_silence_s")
"""The settings that only ranks of several hosts must have in common. For calls inside a host, each host has its own
settings: machines differ in their best ones.
"""


class Identity(NamedTuple):
    """Decides whether two processes can share memory, and whether they can be ranks of one group at all.

    host: its name, for messages.
    namespaces: network and process-id namespaces: abstract sockets and process ids are valid within one only.
    ticks: when the process started: see `engine.process.alive.start_ticks`.
    common: what ranks must have in common; see `common_settings`.
    address: where other hosts reach it.
    listens_at: its socket, where it hands out the memory of its host if it is the host's first rank. No other meeting
    of any process has this name: rank 0's is also the name of the meeting.
    program: its script, for messages.
    size, job: how many ranks it meets, and the name of its job, or "".
    """

    host: str
    boot: str
    namespaces: str
    user: int
    pid: int
    ticks: int
    host_id: str
    common: Mapping[str, str]
    address: str
    listens_at: str = ""
    program: str = ""
    size: int = 1
    job: str = ""

    @classmethod
    def mine(cls, config: Config | None = None, address: str = "") -> "Identity":
        """This process's identity."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid"))
        process, common = (os.getuid(), os.getpid(), start_ticks(os.getpid())), common_settings(config or Config())
        host, host_id, listens_at = socket.gethostname(), os.environ.get(HOST_ID, ""), f"unisono-{os.urandom(16).hex()}"
        program = os.path.basename(sys.argv[0] if sys.argv else "")[:MOST_TEXT]
        return cls(host, boot, namespaces, *process, host_id, common, address, listens_at, program)

    @property
    def place(self) -> tuple[str, str, int, str]:
        """Equal for processes that share memory."""
        return self.boot, self.namespaces, self.user, self.host_id

    @property
    def network(self) -> tuple[str, str]:
        """Equal for processes that reach each other at 127.0.0.1."""
        return self.boot, self.namespaces.partition(" ")[0]

    @property
    def where(self) -> str:
        """The host, in words."""
        return f"host {self.host}" + (f", {HOST_ID}={self.host_id}" if self.host_id else "")

    @property
    def who(self) -> str:
        """The process, in words."""
        return f"process {self.pid}{self.program and f' ({self.program})'} on {self.where}"

    def is_at(self, channel: Channel) -> bool:
        """Is this process at the other end, and not a later one of the same number? Only within one container."""
        return channel.peer == (self.pid, self.user) and start_ticks(self.pid) == self.ticks


def common_settings(config: Config) -> dict[str, str]:
    """What all ranks must have in common, first the version: it explains other differences."""
    link = f"{config.link.latency_s!r}:{config.link.bytes_per_s!r}"
    return {
        "unisono": __version__, "byte_order": sys.byteorder, "dtypes": DTYPES_DIGEST,
        "look_up_s": f"{config.look_up_s!r}", "link": link,
        "host_silence_s": f"{config.host_silence_s!r}",
    }  # fmt: skip


def place(identities: Mapping[int, Identity]) -> Hosts:
    """The hosts of all ranks: equal places are one host."""
    return Hosts.of([identities[rank].place for rank in range(len(identities))])


def host_names(identities: Mapping[int, Identity], hosts: Hosts) -> list[str]:
    """A name for each host, for messages. Hosts of one name get their addresses as well, or else numbers."""
    firsts = [identities[members[0]] for members in hosts.members]
    shorts = [f"{one.host}/{one.host_id}" if one.host_id else one.host for one in firsts]
    alike = Counter(name[:MOST_NAME] for name in shorts)
    addresses = Counter(one.address for one in firsts if not is_loopback(one.address) and ":" not in one.address)
    names = []
    for number, (name, one) in enumerate(zip(shorts, firsts, strict=True)):
        tail = f" at {one.address}" if addresses[one.address] == 1 else f"#{number}"
        tail = tail if alike[name[:MOST_NAME]] > 1 else ""
        names.append(name[: MOST_NAME - len(tail)] + tail)
    return names


def check(identities: Mapping[int, Identity]) -> None:
    """Raise ArgumentError if these ranks cannot form a group. It names the first rank that differs from rank 0."""
    home = identities[0]
    processes: dict[tuple[object, ...], int] = {}
    spans = any(other.place != home.place for other in identities.values())
    for rank, other in sorted(identities.items()):
        for name in {**home.common, **other.common}:
            mine, its = home.common.get(name, "nothing"), other.common.get(name, "nothing")
            if mine != its and (spans or name not in _OVER_HOSTS):
                move = (
                    f"Set {environment_name(name)} to the same value"
                    if name in Config.__annotations__
                    else "It must be the same"
                )
                raise ArgumentError(
                    f"rank {rank} ({_where(other, home)}) has {name}={its}, but rank 0 ({_where(home, other)}) has "
                    f"{mine}. {move} on all ranks."
                )
        twin = processes.setdefault((other.place, other.pid, other.ticks), rank)
        if twin != rank:
            raise ArgumentError(
                f"ranks {twin} and {rank} are the same process (pid {other.pid}), but threads cannot be ranks. Start "
                "one process per rank, with unisono.run() or torchrun."
            )


def way_between(identities: Mapping[int, Identity]) -> str:
    """An address that leads to other hosts, for a rank without one of its own; "" if all ranks are on one network.

    A rank's own address is a loopback address if the name of the meeting place means its own host there. Raises
    ArgumentError if that is so of all ranks.
    """
    home = identities[0]
    other = next((rank for rank, one in identities.items() if one.network != home.network), None)
    if other is None:
        return ""
    for one in identities.values():
        if not is_loopback(one.address):
            return one.address
    raise ArgumentError(
        f"rank 0 ({home.where}) and rank {other} ({identities[other].where}) are on different hosts, but the address "
        f"where they meet ({home.address or 'no network'}) leads each to itself. Set MASTER_ADDR to an address of "
        "rank 0's host that all hosts can reach."
    )


def remark(identities: Mapping[int, Identity], hosts: Hosts) -> str:
    """What to say once if ranks of one machine do not share memory, and the user has not asked for it; else ""."""
    for (first, *_), (rank, *_) in combinations(hosts.members, 2):
        home, other = identities[first], identities[rank]
        if (home.boot, home.host_id) == (other.boot, other.host_id):
            cause = f"as user {other.user}, not {home.user}"
            if home.namespaces != other.namespaces:
                cause = f"in another container: namespaces {other.namespaces}, not {home.namespaces}"
            return (
                f"unisono: rank {rank} runs on the machine of rank {first}, but {cause}. They count as two hosts, "
                "which is slower than to share memory.\n"
            )
    return ""


def _where(one: Identity, other: Identity) -> str:
    """The host of one of two ranks, in words that do not fit the other rank's host, if it is another one."""
    return f"{one.where} at {one.address}" if one.where == other.where and one.address != other.address else one.where
