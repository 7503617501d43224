"""The address at which other hosts reach this one, by the system's routes. No packet is sent."""

import errno
import ipaddress
import os
import socket
from contextlib import suppress
from typing import Any

from ..base.errors import ArgumentError

_ELSEWHERE = "192.0.2.1"  # an address that no host has (RFC 5737): the way there is the default route
_PROBE_S = 2.0


def own_address(toward: str) -> str:
    """The address that this process would send from to reach a host; "" if there is no way to the host.

    toward: a name or an address; "": anywhere, by the default route.
    """
    with suppress(OSError):
        for family, kind, _, _, at in resolve(toward or _ELSEWHERE, 9, socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as sock:
                sock.connect(at)
                return str(sock.getsockname()[0])
    return ""


def resolve(name: str, port: int, kind: socket.SocketKind) -> list[Any]:
    """What `getaddrinfo` says of a name. For a text Python loads its tables of all letters; for bytes it does not."""
    return socket.getaddrinfo(name.encode() if name.isascii() else name, port, type=kind)


def own_addresses() -> list[str]:
    """The IPv4 addresses of this host that other hosts may know; the address of the default route is the first."""
    found = [own_address(""), *interfaces().values()]
    return [address for address in dict.fromkeys(found) if not is_loopback(address)]


def interfaces(family: socket.AddressFamily = socket.AF_INET) -> dict[str, str]:
    """The network interfaces of this host with an address of this family, and the first such address."""
    import psutil  # most processes do not ask

    found: dict[str, str] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family == family:
                found.setdefault(name, one.address)
    return found


def network_interface(address: str) -> str:
    """The network interface with this first address of its family: UCX listens at no other. Raises ArgumentError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for name, first in interfaces(family).items():
        if first == address:
            return name
    raise ArgumentError(
        f"UCX cannot listen at {address}, which is not the first address of a network interface of this host. Set "
        "MASTER_ADDR to an address in another network."
    )


def try_to_reach(address: str, port: int) -> tuple[bool, str]:
    """Is there a way to a host, and what is wrong with the way; "" if a process listens at this port."""
    try:
        found = resolve(address, port, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return False, f"the name {address!r} cannot be resolved ({getattr(error, 'strerror', None) or error})"
    refused = cause = ""
    for family, kind, _, _, at in found:
        with socket.socket(family, kind) as sock:
            sock.settimeout(_PROBE_S)
            number = sock.connect_ex(at)
        if not number:
            return True, ""
        if number == errno.ECONNREFUSED:
            refused = f"no process listens at {at[0]}, port {port}"
        else:
            cause = f"{at[0]} cannot be reached ({os.strerror(number)})"
    return bool(refused), refused or cause


def is_loopback(address: str) -> bool:
    """Is this an address at which a host reaches only itself? The empty address "" counts as one, too."""
    return not address or ipaddress.ip_address(address).is_loopback


def store_host(store: Any) -> str:
    """The host of torch's TCPStore, also if other stores wrap it; "" for a store of another kind."""
    return str(getattr(_innermost(store), "host", ""))


def store_place(store: Any) -> str:
    """The same with the port, as host:port."""
    inner = _innermost(store)
    return f"{inner.host}:{inner.port}" if getattr(inner, "host", "") else ""


def _innermost(store: Any) -> Any:
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return store
