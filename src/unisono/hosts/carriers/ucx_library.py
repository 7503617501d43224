"""UCX's library: where it is, and its functions. It leaves the process as it is.

It comes with the wheel `libucx-cu12`, which needs no CUDA, or with the system. By default, UCX installs signal handlers
when it is loaded, and puts its own code in front of the system's memory functions. Both are off here; a program that
has loaded UCX before decides for itself.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from reprlib import Repr
from typing import Any

from ...base.errors import ArgumentError

OLDEST = 1, 22
"""Before, a process may crash if its peer ends in the middle of a long message: seen with 1.16, 1.17, 1.19 and 1.21."""

IN_PROGRESS = 1
FIRST_ERROR = (1 << 64) - 200
"""A function that begins a message returns its request; 0: it is over; from here on: 2**64 plus an error's status."""

_ALWAYS = {
    "UCX_MEM_EVENTS": "n",
    "UCX_MEM_MMAP_HOOK_MODE": "none",
    "UCX_MEM_CUDA_HOOK_MODE": "none",
    "UCX_HANDLE_ERRORS": "none",
    "UCX_ERROR_SIGNALS": "",
    "UCX_DEBUG_SIGNO": "0",
    "UCX_VFS_ENABLE": "n",
}
_BY_DEFAULT = {"UCX_LOG_LEVEL": "fatal", "UCX_WARN_UNUSED_ENV_VARS": "n"}
"""UCX is quiet: this library's errors report failures."""

_brief = Repr()
_brief.maxother = 80

_HOST_MEMORY = 1 << 6
_TAGS_AND_DESCRIPTOR = 1 | 1 << 4
_U64, _P, _SIZE = c.c_uint64, c.c_void_p, c.c_size_t


class ContextParams(c.Structure):
    """How a context is made: for messages with tags, and for threads that sleep until one comes."""

    _fields_ = (("mask", _U64), ("features", _U64), ("more", c.c_char * 128))

    def __init__(self) -> None:
        super().__init__(mask=1, features=_TAGS_AND_DESCRIPTOR)


class ThreadMode(c.Structure):
    """How a worker is made, and its answer: any thread may call it at any time."""

    MANY = 2
    _fields_ = (("mask", _U64), ("mode", c.c_int), ("more", c.c_char * 320))

    def __init__(self) -> None:
        super().__init__(mask=1, mode=self.MANY)


class EndpointParams(c.Structure):
    """The address of a peer, and the function and argument to call when the connection is lost."""

    _fields_ = (
        ("mask", _U64), ("address", _P), ("error_mode", c.c_int), ("on_error", _P), ("argument", _P),
        ("more", c.c_char * 160),
    )  # fmt: skip

    def __init__(self, address: Any, on_error: Any) -> None:
        super().__init__(mask=7, address=c.addressof(address), error_mode=1)
        self.on_error = c.cast(on_error, _P)


class MessageParams(c.Structure):
    """How messages are begun: their bytes are in memory of the host."""

    _fields_ = (("mask", c.c_uint32), ("more", c.c_char * 156))

    def __init__(self) -> None:
        super().__init__(mask=_HOST_MEMORY)


ON_ERROR = c.CFUNCTYPE(None, _P, _P, c.c_int)

_FUNCTIONS: tuple[tuple[Any, ...], ...] = (
    ("ucp_get_version", None, _P, _P, _P),
    ("ucp_config_read", c.c_int, c.c_char_p, c.c_char_p, _P),
    ("ucp_config_modify", c.c_int, _P, c.c_char_p, c.c_char_p),
    ("ucp_config_release", None, _P),
    ("ucp_init_version", c.c_int, c.c_uint, c.c_uint, _P, _P, _P),
    ("ucp_cleanup", None, _P),
    ("ucp_worker_create", c.c_int, _P, _P, _P),
    ("ucp_worker_query", c.c_int, _P, _P),
    ("ucp_worker_get_address", c.c_int, _P, _P, _P),
    ("ucp_worker_release_address", None, _P, _P),
    ("ucp_worker_progress", c.c_uint, _P),
    ("ucp_worker_get_efd", c.c_int, _P, _P),
    ("ucp_worker_arm", c.c_int, _P),
    ("ucp_worker_destroy", None, _P),
    ("ucp_ep_create", c.c_int, _P, _P, _P),
    ("ucp_tag_send_nbx", _SIZE, _P, _P, _SIZE, _U64, _P),
    ("ucp_tag_recv_nbx", _SIZE, _P, _P, _SIZE, _U64, _U64, _P),
    ("ucp_request_check_status", c.c_int, _P),
    ("ucp_request_cancel", None, _P, _P),
    ("ucp_request_free", None, _P),
    ("ucs_status_string", c.c_char_p, c.c_int),
)


PROOF_BYTES = 16
"""The word of a rank in its entry at the store, before its address."""
_CHECK_BYTES = 16


def entry(proof: bytes, address: bytes) -> str:
    """What a rank writes at the store: a check, its word, and the address of its worker."""
    return (_check(proof + address) + proof + address).hex()


def read_entry(peer: int, said: bytes) -> tuple[bytes, bytes]:
    """The word and the address in the entry of a peer.

    Raises ArgumentError for an invalid entry: UCX would end the process if it read an invalid address.
    """
    with suppress(ValueError):
        content = bytes.fromhex(said.decode())
        check, proof, address = (
            content[:_CHECK_BYTES],
            content[_CHECK_BYTES:][:PROOF_BYTES],
            content[_CHECK_BYTES:][PROOF_BYTES:],
        )
        if address and check == _check(proof + address):
            return proof, address
    raise ArgumentError(
        f"the store has an invalid UCX address of rank {peer}: {_brief.repr(said[:200])}. Another program, or another "
        "version of unisono, writes to this store. Use a MASTER_ADDR and a MASTER_PORT that only this job uses."
    )


def _check(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECK_BYTES, person=b"unisono ucx").digest()


class UcxError(RuntimeError):
    """UCX has refused a call."""


class NoUcx(ArgumentError):
    """UCX is not installed, or it is too old."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"ranks on several hosts send messages by UCX, which cannot be used here ({reason}): pip install "
            "'unisono[hosts]'"
        )


@cache
def ucx_library() -> Any:
    """The library. Raises NoUcx if there is none, or if it is too old.

    Loading it changes the environment for a moment; a process that another thread starts then may fail.
    """
    place = _place()
    try:
        with _left_alone():
            library = c.CDLL(place)
    except OSError as error:
        raise NoUcx(str(error)) from None
    version = [c.c_uint() for _ in range(3)]
    library.ucp_get_version(*map(c.byref, version))
    found = tuple(number.value for number in version)
    if found < OLDEST:
        raise NoUcx(f"{place} is UCX {_dotted(found)}, expected {_dotted(OLDEST)} or later")
    for name, result, *arguments in _FUNCTIONS:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def check(status: int, what: str) -> None:
    """Raise UcxError if the status is an error. what: names the call."""
    if status:
        raise UcxError(f"UCX cannot {what}: {said(status)}")


def said(status: int) -> str:
    """UCX's text for a status."""
    words: bytes = ucx_library().ucs_status_string(status)
    return words.decode(errors="replace")


def _place() -> str:
    """The wheel's library; without a wheel, the system's."""
    spec = importlib.util.find_spec("libucx")
    for folder in spec.submodule_search_locations or () if spec else ():
        file = Path(folder) / "lib" / "libucp.so.0"
        if file.exists():
            return str(file)
    return "libucp.so.0"


@contextmanager
def _left_alone() -> Iterator[None]:
    """Set UCX's variables so that it leaves the process alone. UCX reads them when it is loaded."""
    before = dict(os.environ)
    for name, value in {**_BY_DEFAULT, **before, **_ALWAYS}.items():
        if before.get(name) != value:
            os.environ[name] = value
    try:
        yield
    finally:
        for name in (*_ALWAYS, *_BY_DEFAULT):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
