"""Under which address other hosts reach this one: a question to the system's routes. No packet is sent."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

__all__ = ["interfaces", "is_loopback", "own_address", "own_addresses", "reachable", "store_host"]

_ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737): the way there is the default route."""
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h
_REQUEST = struct.Struct("16s4x4s8x")
_PROBE_S = 2.0


def own_address(toward: str) -> str:
    """The address that this process would send from to reach a host; "" where no way leads there.

    toward: a name or an address; "": anywhere, by the default route.
    """
    with suppress(OSError):
        for family, kind, _, _, at in socket.getaddrinfo(toward or _ELSEWHERE, 9, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as sock:
                sock.connect(at)
                return str(sock.getsockname()[0])
    return ""


def own_addresses() -> list[str]:
    """The IPv4 addresses of this host that others may know, that of the default route first."""
    found = [own_address(""), *interfaces().values()]
    return [address for address in dict.fromkeys(found) if not is_loopback(address)]


def interfaces() -> dict[str, str]:
    """The network interfaces of this host that have an IPv4 address, and that address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(sock, _GET_ADDRESS, _REQUEST.pack(name.encode(), bytes(4)))
                found[name] = socket.inet_ntoa(_REQUEST.unpack(answer)[1])
    return found


def reachable(addresses: Sequence[str], port: int) -> str:
    """The first of these addresses at which somebody listens; "" if there is none."""
    for address in addresses:
        with suppress(OSError), socket.create_connection((address, port), _PROBE_S):
            return address
    return ""


def is_loopback(address: str) -> bool:
    """Is this an address at which a host reaches only itself? So is "", which is none."""
    return not address or ipaddress.ip_address(address).is_loopback


def store_host(store: Any) -> str:
    """The host of torch's TCPStore, also where other stores are put in front of it; "" for a store of another kind."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return str(getattr(store, "host", ""))
