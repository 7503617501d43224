"""The sockets of Gloo's connections, told from all other sockets of this process.

Gloo waits for its sockets by epoll, and gives the kernel the address of its own object with each. The kernel shows both
in /proc. The object begins with the address of its class's table of virtual functions, whose symbol names the class.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...engine.process.alive import read_word

_WATCHED = re.compile(r"tfd: *(?P<fd>\d+) events: *\w+ data: *(?P<data>[0-9a-f]+) +pos:\d+ ino:(?P<inode>[0-9a-f]+) ")
_PAIR = re.compile(rb"_ZTVN4gloo9transport3tcp\w*PairE")
"""The table of `gloo::transport::tcp::Pair`, a connection, or of `tls::TLSPair`."""


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def connections() -> list[tuple[int, str]]:
    """The file descriptors of all connections of Gloo in this process, each with its name in /proc."""
    found = []
    for fd, object_, inode in _watched():
        name = f"socket:[{inode}]"
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{fd}") == name and _is_connection(object_):
                found.append((fd, name))
    return found


def _watched() -> Iterator[tuple[int, int, int]]:
    """What this process waits for by epoll: file descriptor, what the kernel gives back, and inode."""
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{entry}") == "anon_inode:[eventpoll]":
                for one in _WATCHED.finditer(Path(f"/proc/self/fdinfo/{entry}").read_text()):
                    yield int(one["fd"]), int(one["data"], 16), int(one["inode"], 16)


def _is_connection(address: int) -> bool:
    """Is there an object of Gloo's class? The address may be any number."""
    table, symbol = read_word(os.getpid(), address), _Symbol()
    if table is None or not ctypes.CDLL(None).dladdr(ctypes.c_void_p(table), ctypes.byref(symbol)):
        return False
    return _PAIR.fullmatch(symbol.name or b"") is not None
