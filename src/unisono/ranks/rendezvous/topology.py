"""Which ranks seem to share a host, by their identities; why ranks cannot form a group; what to say of one that is
slower than it might be. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations

from ...base.config import Config, environment_name
from ...hosts.addresses import is_loopback
from ...schedule import Hosts
from .identity import HOST_ID, MOST_NAME, Identity

_COMMON = ("look_up_s", "link", "carrier", "host_silence_s")
"""The settings that all ranks of several hosts must have in common. What shapes calls inside a host is each host's own:
machines differ in what is best on them.
"""
_ON_ONE_HOST = ("look_up_s",)
"""The settings that all ranks must have in common also where they are all on one host."""

_MOST_ADDRESS = len("255.255.255.255")
"""Characters of an address in a host's name: more than that is none for messages."""


def place(identities: Mapping[int, Identity], apart: Collection[int] = ()) -> Hosts:
    """The hosts of all ranks: equal places are one host. apart: ranks that are each a host of their own."""
    names = [(identities[rank].place, rank if rank in apart else -1) for rank in range(len(identities))]
    return Hosts.of(names)


def host_names(identities: Mapping[int, Identity], hosts: Hosts) -> tuple[str, ...]:
    """A name for each host, for messages: what it calls itself. Hosts that have one name, as containers and copies of a
    machine do, are told apart by their addresses; where that does not do, by their numbers.
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
    """The settings that ranks must have in common, as an identity has them."""
    link = f"{config.link.latency_s!r}:{config.link.bytes_per_s!r}"
    return f"{config.look_up_s!r} {link} {config.carrier} {config.host_silence_s!r}"


def why_refused(identities: Mapping[int, Identity], apart: Collection[int] = ()) -> str:
    """Why the ranks that have come cannot form a group, naming the first that does not fit; "" if they can."""
    home = identities[0]
    processes: dict[tuple[object, ...], int] = {}
    spans = bool(apart) or any(other.place != home.place for other in identities.values())
    for rank, other in sorted(identities.items()):
        here, there = f"rank 0 ({_where(home, other)})", f"rank {rank} ({_where(other, home)})"
        for what, mine, its in (
            ("unisono", home.version, other.version),
            ("the byte order", home.byte_order, other.byte_order),
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
    """An address that leads a rank without one of its own to the others, and why there is none; both may be "".

    A rank's own address is a loopback address where the name of the meeting place means its own host there.
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
    """What to say once if ranks of one machine do not share memory, though nobody has asked for that; else ""."""
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
    """The host of one of two ranks, in words that do not fit the other's if that is another one."""
    return f"{one.where} at {one.address}" if one.where == other.where and one.address != other.address else one.where
