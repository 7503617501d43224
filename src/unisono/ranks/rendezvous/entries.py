"""Entries of the store where the ranks meet. Any process that reaches the store can write there: each field is checked.

Only names come from the store. The memory of a group is handed over by the kernel, between processes that it knows.
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from reprlib import Repr
from typing import Any, NamedTuple, TypeVar

from ...base.errors import ArgumentError
from ...schedule import Hosts

MOST_NAME = 32
"""Characters of a host's short name: a thousand of them go into one entry."""
MOST_WORDS = 4_000
_MOST_BYTES = 60 << 10  # less than a `PlainChannel` takes in
_MOST_TEXT, _MOST_NUMBER = 500, 1 << 63

_brief = Repr()
_brief.maxstring = _brief.maxother = 80

Entry = TypeVar("Entry")


class MeetingNotice(NamedTuple):
    """The meeting that rank 0 holds now.

    meeting: a name that no other meeting has.
    size: how many ranks rank 0 waits for.
    job: the name of the job, or "".
    host, pid, program: of rank 0, for messages.
    """

    meeting: str
    size: int
    job: str
    host: str
    pid: int
    program: str

    @property
    def who(self) -> str:
        """Rank 0, in words."""
        return f"process {self.pid}{self.program and f' ({self.program})'} on host {self.host}"


class HostMap(NamedTuple):
    """Which ranks share a host; from rank 0.

    hosts: for each host its ranks, its name, and how many ranks are on its machine.
    secret: only the ranks know it; "" on one host.
    toward: an address on the way to the other hosts, or "".
    """

    hosts: tuple[tuple[tuple[int, ...], str, int], ...]
    secret: str
    toward: str


class SentinelNotice(NamedTuple):
    """Where the sentinel of a host will serve. socket: for ranks. reached_at, port: for other sentinels."""

    socket: str
    reached_at: str
    port: int


class MeetingEnd(NamedTuple):
    """How a meeting has ended: with a group, or one of these reasons.

    reason: why the ranks cannot form a group.
    full: where memory is missing.
    missing: the ranks that have not come.
    dead: the rank that has died, and its pid.
    """

    reason: str = ""
    full: str = ""
    missing: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()


def write(entry: Any) -> str:
    """An entry as text for the store. entry: a named tuple; all its fields are in the table below."""
    return json.dumps(entry._asdict())


def read(kind: type[Entry], said: bytes, teller: int, size: int = 1) -> Entry:
    """The entry of this kind that rank `teller` of `size` has written. Raises ArgumentError if these bytes are none."""
    make: Callable[..., Entry] = kind
    with suppress(ValueError, RecursionError):
        told = json.loads(said) if len(said) <= _MOST_BYTES else None
        if type(told) is dict and told.keys() == kind.__annotations__.keys():
            fields = {name: _frozen(value) for name, value in told.items()}
            if all(_IS_SOUND[name](value, size) for name, value in fields.items()):
                return make(**fields)
    raise ArgumentError(
        f"at the store where the ranks meet, rank {teller} has written {_brief.repr(bytes(said[:200]))}, which is not "
        f"a valid {kind.__name__}: another program, or another version of unisono, writes to this store. Use an "
        "address and a port of this job's own (MASTER_ADDR, MASTER_PORT), which others cannot reach"
    )


def _frozen(value: Any, depth: int = 3) -> Any:
    """A value with tuples in place of lists."""
    return tuple(_frozen(one, depth - 1) for one in value) if type(value) is list and depth else value


def _text(most: int = _MOST_TEXT, pattern: str = r"[\s\S]*") -> Callable[[Any, int], bool]:
    return lambda value, _: type(value) is str and len(value) <= most and re.fullmatch(pattern, value) is not None


def _number(least: int = 0, most: int = _MOST_NUMBER) -> Callable[[Any, int], bool]:
    return lambda value, _: type(value) is int and least <= value < most


def _are_ranks(value: Any, size: int) -> bool:
    return type(value) is tuple and all(type(rank) is int and 0 <= rank < size for rank in value)


def _is_dead(value: Any, size: int) -> bool:
    return type(value) is tuple and (
        not value or (_are_ranks(value[:1], size) and list(map(type, value)) == [int, int])
    )


def _are_hosts(value: Any, size: int) -> bool:
    """Is each rank on one host? And has each host a short name, and a number of ranks on its machine?"""
    if type(value) is not tuple or not all(type(host) is tuple and len(host) == 3 for host in value):
        return False
    if not all(_are_ranks(host[0], size) and _text(MOST_NAME)(host[1], 0) for host in value):
        return False
    with suppress(ArgumentError):
        return Hosts(tuple(host[0] for host in value)).ranks == size and all(
            _number(1, size + 1)(host[2], 0) for host in value
        )
    return False


def _is_address(value: Any, _size: int) -> bool:
    with suppress(ValueError):
        return type(value) is str and bool(ip_address(value))
    return False


def _is_address_or_none(value: Any, _size: int) -> bool:
    return value == "" or _is_address(value, 0)


def _are_common(value: Any, _size: int) -> bool:
    return (
        type(value) is dict and len(value) < 50 and all(_text(100)(word, 0) for pair in value.items() for word in pair)
    )


_IS_SOUND: dict[str, Callable[[Any, int], bool]] = {
    **dict.fromkeys(("host", "boot", "namespaces", "host_id", "job", "program"), _text()),
    **dict.fromkeys(("user", "pid", "ticks"), _number()),
    **dict.fromkeys(("reason", "full"), _text(MOST_WORDS)),
    **dict.fromkeys(("address", "toward"), _is_address_or_none),
    "reached_at": _is_address,
    "port": _number(1, 1 << 16),
    "size": _number(1),
    "meeting": _text(pattern="[0-9a-f]{16}"),
    "listens_at": _text(pattern="(unisono-[0-9a-f]{32})?"),
    "socket": _text(pattern="unisono-[0-9a-f]{32}"),
    "secret": _text(pattern="([0-9a-f]{64})?"),
    "common": _are_common,
    "hosts": _are_hosts,
    "missing": _are_ranks,
    "dead": _is_dead,
}
"""The name of a field -> is this its value, in a meeting of so many ranks?"""
