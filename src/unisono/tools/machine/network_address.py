"""The network, for ranks on several hosts: under which address others reach this one, and over what."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress

from .finding import Finding, advice, fine
from .linux_files import Files

_FAST_MBIT, _LARGE = 10_000, 8000


def check_address(address: str, outside: str, interface: str, environ: Mapping[str, str]) -> Finding:
    """Would other hosts find this one? address: what this host would send from to reach MASTER_ADDR; outside: to reach
    anybody else; "": no way leads there. interface: which has the address.
    """
    master = environ.get("MASTER_ADDR", "")
    if _reaches_others(address):
        toward = f" toward MASTER_ADDR={master}" if master else ""
        return fine("address", f"{address}{f' ({interface})' if interface else ''}{toward}")
    if master and not address:
        return advice(
            "address",
            f"MASTER_ADDR={master}: no way leads there",
            reason="ranks cannot meet",
            change="name a host that this one can reach",
        )
    if master and _reaches_others(outside):
        return advice(
            "address",
            f"MASTER_ADDR={master} is this host alone",
            reason="ranks of other hosts would each look for it at home, and wait for ever",
            change=f"for several hosts: MASTER_ADDR={outside}, on all of them",
        )
    return fine("address", "none but loopback: for ranks of this host only")


def check_packets(files: Files, interface: str) -> Finding:
    """Does a fast network have large packets?"""
    mtu, speed = (files.number(f"sys/class/net/{interface}/{name}") for name in ("mtu", "speed"))
    if mtu is None:
        return fine("packets", "no network")
    rate = f", {speed / 1000:g} Gbit/s" if speed and speed > 0 else ""
    said = f"{interface}: {mtu} bytes{rate}"
    if mtu >= _LARGE or not speed or speed < _FAST_MBIT:
        return fine("packets", said)
    return advice(
        "packets",
        said,
        reason="at this rate the kernel's work for each packet takes a processor, or limits the rate",
        change=f"ip link set {interface} mtu 9000, if all hosts and switches take it",
    )


def _reaches_others(address: str) -> bool:
    with suppress(ValueError):
        return not ipaddress.ip_address(address).is_loopback
    return False
