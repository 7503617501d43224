"""The door of a job over hosts: a store of torch at an address, where new processes ask to join.

Here members and new processes may meet. The keys, for the meeting M:

    open        the first rank of the group: the name of the next meeting
    came M 3    a new process, the fourth that comes to the meeting: its identity
    said M 3    the first rank: the place of this process in the meeting, or why it cannot join

A new process that finds another name at `open`, and has no place, comes to that meeting, too. So the first rank sees
which processes are still there: it names another meeting, and looks which ones come.

Any process that reaches the store can write there, as at the start of a job. So each value is checked.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from ...base.config import Config
from ...base.errors import ArgumentError, UnisonoError
from ...engine.memory.board import MAX_RANKS
from ...hosts.addresses import own_address, try_to_reach
from ..group.group import Group
from ..rendezvous.asked_store import AskedStore
from ..rendezvous.identity import Identity, common_settings, why_refused
from ..rendezvous.rendezvous_messages import read_identity, write_identity
from .larger_world import larger_world

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own __all__ omits it

_PREFIX, _OPEN, _MEETING = "unisono join", "open", r"[0-9a-f]{16}"
_ANSWER_S = 3.0  # how long a process at the address may take to show that it is a store, and a new process to answer
_LOOK_S = 0.05
_MOST_BYTES = 10_000


def address_of(door: str | None, environ: Mapping[str, str]) -> str:
    """The address, such as `10.0.0.1:29500`, that `door` names, or else the environment; "": it names none."""
    named = door or f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
    host, _, port = named.rpartition(":")
    return named if host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16 else ""


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class StoreDoor:
    """The door, as the first rank of a group has it. Raises ArgumentError if there can be no store at this address.

    job: the address.
    meeting: the name of the next meeting.
    """

    def __init__(self, job: str, config: Config) -> None:
        self.job, self._config = job, config
        _, cause = try_to_reach(*_host_and_port(job))
        try:
            self.store = store_at(job, serve=bool(cause))
        except (RuntimeError, TimeoutError) as error:
            raise ArgumentError(
                f"door: {cause or f'the process that listens at {job} is no store of torch'}, and the first rank "
                f"cannot listen there ({error}): pass a free address of the first rank's host to unisono.grow() and to "
                "unisono.join(): door='10.0.0.1:29500'"
            ) from error
        self._asked = AskedStore(self.store, time.monotonic() + _ANSWER_S)
        self._name_meeting()

    def _name_meeting(self) -> None:
        self.meeting, self._came, self._waiting = os.urandom(8).hex(), 0, list[int]()
        self._asked.set(_OPEN, json.dumps(self.meeting))

    def waiting(self, place: int) -> int:
        """How many processes have come to the next meeting. place: the rank that the first one would have."""
        while self._asked.check([key := f"came {self.meeting} {self._came}"]):
            with suppress(ArgumentError):  # another program has written this
                one = read_identity(place, self._asked.get(key))
                own = Identity.mine().replace(common=common_settings(self._config), address=one.address)
                if why := why_refused({0: own, place: one}):
                    self._say(self._came, ["refused", why])
                else:
                    self._waiting.append(self._came)
            self._came += 1
        return len(self._waiting)

    def present(self, place: int, most: int) -> int:
        """How many of the processes that have come are still there: at most so many, as all get a place."""
        come = min(most, self.waiting(place))
        until = time.monotonic() + _ANSWER_S
        if come:
            self._name_meeting()
        while self.waiting(place) < come and time.monotonic() < until:
            time.sleep(_LOOK_S / 10)
        return min(most, len(self._waiting))

    def invite(self, count: int, members: int, timeout_s: float) -> None:
        """Give the first processes places in the meeting, behind the members. The others come to the next one."""
        for rank, number in enumerate(self._waiting[:count], members):
            self._say(number, ["place", rank, members, members + count, timeout_s])
        self._name_meeting()

    def _say(self, number: int, said: list[object]) -> None:
        self._asked.set(f"said {self.meeting} {number}", json.dumps(said))

    def close(self) -> None:
        """Ask the store no more."""
        self._asked.close()


def store_at(address: str, *, serve: bool = False) -> Store:
    """The door's part of the store at this address. serve: this process runs it.

    Raises RuntimeError or TimeoutError if there is no store.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # late: torch.distributed takes a second

    from ..rendezvous.stores import tcp_store  # not on one host

    return PrefixStore(_PREFIX, tcp_store(*_host_and_port(address), 1, time.monotonic() + _ANSWER_S, serve=serve))


def ask_at(address: str, config: Config, deadline: float) -> Group | str:
    """The group of a job that lets this process in at this door; or why it has not, if it may ask again.

    Raises ArgumentError if the job refuses this process.
    """
    _, cause = try_to_reach(*_host_and_port(address))
    if cause:
        return f"Over hosts, {cause}"
    try:
        store = store_at(address)
        with closing(AskedStore(store, time.monotonic() + _ANSWER_S)) as asked:
            place = _place(asked, config, deadline)
        if isinstance(place, str):
            return f"At {address}, {place}"
        meeting, (rank, members, size), config, timeout_s = place
        group = larger_world(store, meeting, rank, members, size, config)
    except _Refused as error:
        raise ArgumentError(f"the ranks of this job do not let this process in: {error}") from None
    except (UnisonoError, OSError, RuntimeError) as error:  # also why the others have ended the meeting
        return f"At {address}, {str(error).rstrip('.')}"
    group.timeout_s = timeout_s
    return group


class _Refused(Exception):
    """The job does not let this process in, for good."""


def _place(asked: AskedStore, config: Config, deadline: float) -> tuple[str, tuple[int, int, int], Config, float] | str:
    """The meeting, this process's place there, the job's settings and time; or why there is no place.

    The place: this process's rank, and how many ranks are members, and are there. Raises _Refused.
    """
    address, number, came = own_address(asked.where.rpartition(":")[0]), 0, ""
    while True:
        match _json(asked.get(_OPEN)) if asked.check([_OPEN]) else None:
            case str(meeting) if re.fullmatch(_MEETING, meeting):
                pass
            case _:
                return "no rank has called unisono.grow() for a job over hosts"
        if came and (said := asked.value(f"said {came} {number}", _LOOK_S)) is not None:
            match _json(said):
                case ["refused", str(why)]:
                    raise _Refused(why)
                case ["place", int(rank), int(members), int(size), float(timeout_s)] if (
                    0 < members <= rank < size <= MAX_RANKS and timeout_s >= 0
                ):
                    return came, (rank, members, size), config, timeout_s
            return "another program has answered"
        if time.monotonic() >= deadline:
            return "the first rank has not let it in"
        if came != meeting:
            text = write_identity(Identity.mine().replace(common=common_settings(config), address=address))
            came, number = meeting, 0
            while asked.set_first(f"came {came} {number}", text) != text.encode():
                number += 1


def _json(said: bytes) -> object:
    with suppress(ValueError, RecursionError):
        return json.loads(said[:_MOST_BYTES])
    return None
