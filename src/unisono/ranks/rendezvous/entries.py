"""Entries of the store where the ranks meet. Any process that reaches the store can write there: each field is checked.

Only names come from the store. The memory of a group is handed over by the kernel, between processes that it knows.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from itertools import repeat
from reprlib import Repr
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from ...base.errors import ArgumentError
from ...base.records import DepartureKind
from ...schedule import Hosts

MOST_NAME = 32
"""Characters of a host's short name: a thousand of them go into one entry."""
MOST_TEXT, MOST_WORDS = 500, 4_000
_MOST_BYTES = 60 << 10  # less than a `Channel` takes in
_MOST_NUMBER = 1 << 63

_brief = Repr()
_brief.maxstring = _brief.maxother = 80

Entry = TypeVar("Entry")


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
    gone: the rank that has died or given up, its pid, and which of the two, as a `DepartureKind`.
    words: of its departure.
    """

    reason: str = ""
    full: str = ""
    missing: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    words: str = ""


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
            if all(_fits(it, kind.__annotations__[name]) and _IS_SOUND[name](it, size) for name, it in fields.items()):
                return make(**fields)
    raise ArgumentError(
        f"the store has an invalid {kind.__name__} of rank {teller}: {_brief.repr(bytes(said[:200]))}. Another "
        "program, or another version of unisono, writes to this store. Use a MASTER_ADDR and a MASTER_PORT that only "
        "this job uses."
    )


def _frozen(value: Any, depth: int = 3) -> Any:
    """A value with tuples in place of lists."""
    return tuple(_frozen(one, depth - 1) for one in value) if type(value) is list and depth else value


def _fits(value: Any, kind: Any) -> bool:
    """Is a value of the kind that a field's annotation names?"""
    kinds = get_args(kind)
    if get_origin(kind) is Mapping:
        return type(value) is dict and all(map(_fits, (*value, *value.values()), repeat(str)))
    if not kinds:
        return type(value) is kind
    if type(value) is not tuple or (kinds[-1] is not Ellipsis and len(value) != len(kinds)):
        return False
    return all(map(_fits, value, repeat(kinds[0]) if kinds[-1] is Ellipsis else kinds))


def _like(pattern: str) -> Callable[[str, int], bool]:
    return lambda text, _: re.fullmatch(pattern, text) is not None


def _shorter(most: int) -> Callable[[str, int], bool]:
    return lambda text, _: len(text) <= most


def _are_ranks(ranks: tuple[int, ...], size: int) -> bool:
    return all(0 <= rank < size for rank in ranks)


def _are_hosts(hosts: tuple[tuple[tuple[int, ...], str, int], ...], size: int) -> bool:
    """Is each rank on one host? And has each host a short name, and a number of ranks on its machine?"""
    if all(_are_ranks(ranks, size) and len(name) <= MOST_NAME and 0 < near <= size for ranks, name, near in hosts):
        with suppress(ArgumentError):
            return Hosts(tuple(ranks for ranks, _, _ in hosts)).ranks == size
    return False


def _is_address(text: str, _size: int) -> bool:
    with suppress(ValueError):
        return bool(ip_address(text))
    return False


_IS_SOUND: dict[str, Callable[[Any, int], bool]] = {
    **dict.fromkeys(("host", "boot", "namespaces", "host_id", "job", "program"), _shorter(MOST_TEXT)),
    **dict.fromkeys(("user", "pid", "ticks"), lambda number, _: 0 <= number < _MOST_NUMBER),
    **dict.fromkeys(("reason", "full", "words"), _shorter(MOST_WORDS)),
    **dict.fromkeys(("address", "toward"), lambda text, _: not text or _is_address(text, 0)),
    "reached_at": _is_address,
    "port": lambda port, _: 0 < port < 1 << 16,
    "size": lambda size, _: 0 < size < _MOST_NUMBER,
    "listens_at": _like("(unisono-[0-9a-f]{32})?"),
    "socket": _like("unisono-[0-9a-f]{32}"),
    "secret": _like("([0-9a-f]{64})?"),
    "common": lambda words, _: len(words) < 50 and all(len(word) <= 100 for pair in words.items() for word in pair),
    "hosts": _are_hosts,
    "missing": _are_ranks,
    "gone": lambda gone, size: not gone or (len(gone) == 3 and 0 <= gone[0] < size and gone[2] in [*DepartureKind]),
}
"""The name of a field -> whether a value is valid for it in a meeting of that many ranks."""
