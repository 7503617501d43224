"""The door of a job over hosts: a store of torch at an address, where new processes ask to join.

The keys, for the process with ticket 3:

    open        the first rank of the group: the link of the job; its value is an answer to whether there is a door
    came 3      the process: its identity
    said 3 0    the first rank: `here?`, a place in a meeting, or why the process cannot join; then `said 3 1`, ...
    here 3 0    the process: it is there, and has read `here?`

Any process that reaches the store can write there, as at the start of a job. So each value is checked.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from socket import SOCK_STREAM
from typing import TYPE_CHECKING, NamedTuple

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError
from ...base.link import Link
from ...engine.memory.board import MAX_RANKS
from ...hosts.addresses import own_address, resolve, try_to_reach
from ..group.group import Group
from ..rendezvous.asked_store import AskedStore
from ..rendezvous.identity import Identity, common_settings, why_refused
from ..rendezvous.rendezvous_messages import read_identity, write_identity
from .larger_world import larger_world

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

_PREFIX, _OPEN, _HERE = "unisono join", "open", "here?"
_ANSWER_S = 3.0  # how long a process at the address may take to show that it is a store, and a new process to answer
_LOOK_S = 0.05
_MOST_BYTES = 10_000


class Address(NamedTuple):
    """Where a job's door is."""

    host: str
    port: int

    @classmethod
    def parse(cls, door: str) -> Address | None:
        """`10.0.0.1:29500` as an address; None: this is another name of a door."""
        host, colon, port = door.rpartition(":")
        fits = colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
        return cls(host.strip("[]"), int(port)) if fits else None

    @classmethod
    def of(cls, door: str | None, environ: Mapping[str, str]) -> Address | None:
        """The address that `door` names, or else the environment; None: none."""
        return cls.parse(door if door else f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Refused(Exception):
    """The job does not let this process in, for good."""


class Candidate(NamedTuple):
    """A process that has come, and the first of its keys `said` that is not written."""

    ticket: int
    identity: Identity
    entry: int


class StoreDoor:
    """The door, as the first rank of a group has it. Raises ArgumentError if there can be no store at this address."""

    def __init__(self, job: str, address: Address, config: Config) -> None:
        self.job, self.store = job, _store_at(address)
        self._config, self._next = config, 0
        self._waiting: dict[int, Candidate] = {}
        self._asked = _asked(self.store)
        self._asked.set(_OPEN, json.dumps(config.link))

    def waiting(self, place: int) -> int:
        """How many processes have come, and wait. place: the rank that the next one would have."""
        while (said := self._value(f"came {self._next}")) is not None:
            ticket, entry = self._next, 0
            self._next += 1
            while (before := self._value(f"said {ticket} {entry}")) == _HERE.encode():
                entry += 1
            with suppress(ArgumentError):  # another program has written this
                if before is None:
                    self._judge(place, Candidate(ticket, read_identity(place, said), entry))
        return len(self._waiting)

    def _judge(self, place: int, one: Candidate) -> None:
        own = Identity.mine().replace(common=common_settings(self._config), address=one.identity.address)
        if why := why_refused({0: own, place: one.identity}):
            self._say(one, ["refused", why])
        else:
            self._waiting[one.ticket] = one

    def present(self) -> list[Candidate]:
        """The processes that answer now."""
        asked = [one for one in self._waiting.values() if self._say(one, _HERE)]
        until, found = time.monotonic() + _ANSWER_S, list[Candidate]()
        while len(found) < len(asked) and time.monotonic() < until:
            found = [one for one in asked if self._asked.check([f"here {one.ticket} {one.entry}"])]
            time.sleep(_LOOK_S / 10)
        for one in asked:  # a process that comes too late takes another ticket
            if one not in found:
                self._say(one._replace(entry=one.entry + 1), ["again"])
        self._waiting = {one.ticket: one._replace(entry=one.entry + 1) for one in found}
        return [*self._waiting.values()]

    def invite(self, chosen: Sequence[Candidate], meeting: str, members: int, timeout_s: float) -> None:
        """Give these processes places in the meeting, behind the members."""
        for rank, one in enumerate(chosen, members):
            self._say(one, ["place", meeting, rank, members, members + len(chosen), timeout_s])
            self._waiting.pop(one.ticket, None)

    def _say(self, one: Candidate, said: object) -> bool:
        """Say this to a process, unless another first rank has said something."""
        text = said if isinstance(said, str) else json.dumps(said)
        return self._asked.set_first(f"said {one.ticket} {one.entry}", text) == text.encode()

    def _value(self, key: str) -> bytes | None:
        return self._asked.get(key) if self._asked.check([key]) else None

    def close(self) -> None:
        """Ask the store no more."""
        self._asked.close()


def meeting_store(store: Store, meeting: str) -> Store:
    """The part of the store for one meeting."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # late: torch.distributed takes a second

    return PrefixStore(f"{_PREFIX}/{meeting}", store)


def store_of(address: Address) -> Store:
    """The store that serves at this address. Raises RuntimeError or TimeoutError if none does."""
    from ..rendezvous.stores import tcp_store  # not on one host

    return tcp_store(*address, 1, time.monotonic() + _ANSWER_S, serve=False)


def _store_at(address: Address) -> Store:
    """The same; if no process listens at this address of this host, this process does."""
    from ..rendezvous.stores import tcp_store  # not on one host

    _, cause = try_to_reach(*address)
    if not cause:
        try:
            return store_of(address)
        except (RuntimeError, TimeoutError) as error:
            raise ArgumentError(f"door: the process that listens at {address} is no store of torch: {error}") from error
    own = False
    with suppress(OSError):
        own = resolve(*address, SOCK_STREAM)[0][4][0] == own_address(address.host)
    if not own:
        raise ArgumentError(
            f"door: {cause}, and this is no address of the first rank's host: pass another one to unisono.grow() on "
            "the ranks of the job, and to unisono.join() in new processes: door='10.0.0.1:29500'"
        )
    return tcp_store(*address, 1, time.monotonic() + _ANSWER_S, serve=True)


def _asked(store: Store) -> AskedStore:
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return AskedStore(PrefixStore(_PREFIX, store), time.monotonic() + _ANSWER_S)


def ask_at(address: Address, config: Config, deadline: float) -> Group | str:
    """The group of a job that lets this process in at this door; or why it has not, if it may ask again.

    Raises ArgumentError if the job refuses this process.
    """
    _, cause = try_to_reach(*address)
    if cause:
        return f"Over hosts, {cause}"
    asked: AskedStore | None = None
    try:
        store = store_of(address)
        asked = _asked(store)
        if not asked.check([_OPEN]):
            return f"At {address}, no rank has called unisono.grow() for a job over hosts"
        if (place := _place(asked, config, deadline)) is None:
            return f"The ranks that have opened the door at {address} have not let it in"
        config, (meeting, rank, members, size, timeout_s) = place
        group = larger_world(meeting_store(store, meeting), rank, members, size, config)
    except Refused as error:
        raise ArgumentError(f"the ranks of this job do not let this process in: {error}") from None
    except (UnisonoError, OSError, RuntimeError) as error:  # also why the others have ended the meeting
        return f"At {address}, {str(error).rstrip('.')}"
    finally:
        if asked is not None:
            asked.close()
    if group is None:
        return f"At {address}, another rank failed when this process had a place"
    group.timeout_s = timeout_s
    return group


def _place(
    asked: AskedStore, config: Config, deadline: float
) -> tuple[Config, tuple[str, int, int, int, float]] | None:
    """The settings for, and the place in, the meeting to which this process is called."""
    if not config.link.known:
        with suppress(TypeError, ValueError):
            latency_s, bytes_per_s = json.loads(asked.get(_OPEN))
            config = config.replace(link=Link(float(latency_s), float(bytes_per_s)))
    own = Identity.mine().replace(common=common_settings(config), address=own_address(asked.where.rpartition(":")[0]))
    text, ticket, entry = write_identity(own), 0, 0
    while asked.check([f"came {ticket}"]) or asked.set_first(f"came {ticket}", text) != text.encode():
        ticket += 1  # also past the tickets that this process had before
    while (said := asked.value(f"said {ticket} {entry}", _LOOK_S)) is not None or time.monotonic() < deadline:
        if said == _HERE.encode():
            asked.set(f"here {ticket} {entry}", "")
            entry += 1
        elif said is not None:
            return _read(said, config)
    return None


def _read(said: bytes, config: Config) -> tuple[Config, tuple[str, int, int, int, float]] | None:
    """What the first rank has said. Raises Refused."""
    try:
        told = json.loads(said[:_MOST_BYTES])
    except (ValueError, RecursionError):
        return None
    match told:
        case ["refused", str(why)]:
            raise Refused(why)
        case ["place", str(meeting), int(rank), int(members), int(size), float(timeout_s)] if (
            re.fullmatch(r"[0-9a-f]{16}", meeting) and 0 < members <= rank < size <= MAX_RANKS and timeout_s >= 0
        ):
            return config, (meeting, rank, members, size, timeout_s)
    return None
