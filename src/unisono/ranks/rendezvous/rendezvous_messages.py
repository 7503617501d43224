"""What ranks write at the store where they meet: identities, which ranks share a host, and the places of sentinels.

Any process that reaches the store can write there. So each message is checked, and only names come from it: the kernel
hands the memory of a group over, between processes that it knows.

If ranks do not meet, there is an error for each reason, made of its fields, and a `MeetingMessage` at the store.
"""

import json
import os
import re
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from reprlib import Repr
from typing import Any, NamedTuple

from ...base.errors import ArgumentError, OutOfMemory, PeerFailed, PeerGone, WaitTimeout
from ...base.records import Departure, DepartureKind
from ...schedule import Hosts
from .identity import MOST_NAME, Identity

_MOST_BYTES = 60 << 10  # the most bytes of such a message: less than a `PlainChannel` takes in
_MOST_TEXT, _MOST_NUMBER, _PORTS = 500, 1 << 63, 1 << 16
_NAME = r"unisono-[0-9a-f]{32}"
_MEETING = r"[0-9a-f]{16}"
_MOST_COMMON = 128
_COMMON = frozenset("+-.: 0123456789abcdefghijklmnopqrstuvwxyz")  # the characters of settings that ranks have in common

_brief = Repr()
_brief.maxstring = _brief.maxother = 80

_MOST_WORDS = 4_000
_MOVE = "Set MASTER_ADDR, to an address of rank 0's host that all hosts reach, and MASTER_PORT, for every process"


class MeetingMessage(NamedTuple):
    """What a rank writes for others. One of:

    hosts: which ranks share a host.
    name: the socket where the first rank of a host hands out the memory.
    proven: the ranks that have got the memory.
    reason: why there is no group.
    full: there is no group for want of memory.
    missing: the ranks that have not come.
    dead: the rank that has died, and its pid.

    At the end of the meeting, also with hosts:
    names: the names of the hosts.
    neighbours: how many ranks are on each host's machine.
    secret: only the ranks know it.
    toward: an address on the way to the other hosts.
    """

    hosts: tuple[tuple[int, ...], ...] = ()
    name: str = ""
    proven: tuple[int, ...] = ()
    reason: str = ""
    full: str = ""
    missing: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    neighbours: tuple[int, ...] = ()
    secret: str = ""
    toward: str = ""

    def text(self) -> str:
        """As it stands at the store."""
        return json.dumps(self._asdict())

    @classmethod
    def read(cls, said: bytes, size: int, teller: int = 0) -> "MeetingMessage":
        """The message, for `size` ranks. Raises ArgumentError if these bytes are none."""
        told = {key: _frozen(value) for key, value in _fields(said).items()}
        kinds = {name: type(default) for name, default in cls._field_defaults.items()}
        if {key: type(value) for key, value in told.items()} == kinds and (message := cls(**told)).is_sound(size):
            return message
        raise _refusal(teller, said, "no such message")

    def is_sound(self, size: int) -> bool:
        """Could a rank of such a meeting have written these values?"""
        says = self.hosts, self.name, self.proven, self.reason, self.full, self.missing, self.dead
        ends = self.names, self.neighbours, self.secret, self.toward
        return (
            sum(map(bool, says)) == 1
            and _are_ranks((*self.proven, *self.missing, *self.dead[:1]), size)
            and len(self.dead) in (0, 2)
            and all(type(pid) is int and 0 <= pid < _MOST_NUMBER for pid in self.dead[1:])
            and _is_map(self.hosts, size)
            and (bool(self.hosts) or not any(ends))
            and len(self.names) == len(self.neighbours) in (0, len(self.hosts))
            and all(type(name) is str and len(name) <= MOST_NAME for name in self.names)
            and all(type(count) is int and 0 < count <= size for count in self.neighbours)
            and bool(re.fullmatch(f"({_NAME})?", self.name))
            and bool(re.fullmatch(r"([0-9a-f]{64})?", self.secret))
            and _is_address(self.toward)
        )


class MeetingNotice(NamedTuple):
    """What rank 0 writes about the meeting that it holds now.

    name: no other meeting has it.
    size: how many ranks rank 0 waits for.
    job: the name of the job, or "".
    host, pid, program: of rank 0, for messages.
    """

    name: str
    size: int
    job: str
    host: str
    pid: int
    program: str

    @classmethod
    def mine(cls, size: int, job: str) -> "MeetingNotice":
        """The notice of a new meeting of this process."""
        program = os.path.basename(sys.argv[0] if sys.argv else "")[:_MOST_TEXT]
        return cls(os.urandom(8).hex(), size, job[:_MOST_TEXT], socket.gethostname(), os.getpid(), program)

    @property
    def who(self) -> str:
        """Rank 0, in words."""
        return f"process {self.pid}{self.program and f' ({self.program})'} on host {self.host}"

    def text(self) -> str:
        """As it stands at the store."""
        return json.dumps(self._asdict())

    @classmethod
    def read(cls, said: bytes) -> "MeetingNotice":
        """The notice of rank 0. Raises ArgumentError if these bytes are none."""
        told = _fields(said)
        if _has_kinds(cls, told) and re.fullmatch(_MEETING, told["name"]) and told["size"]:
            return cls(**told)
        raise _refusal(0, said, "no notice of a meeting")


class SentinelNotice(NamedTuple):
    """Where the sentinel of a host will serve. name: its socket for ranks. address, port: for other sentinels."""

    name: str
    address: str
    port: int

    def text(self) -> str:
        """As it stands at the store."""
        return json.dumps(self)

    @classmethod
    def read(cls, said: bytes, teller: int) -> "SentinelNotice":
        """The notice of the rank that starts the sentinel. Raises ArgumentError if these bytes are none."""
        told = _json(said)
        if (
            type(told) is list
            and list(map(type, told)) == [str, str, int]
            and re.fullmatch(_NAME, told[0])
            and told[1]
            and _is_address(told[1])
            and 0 < told[2] < _PORTS
        ):
            return cls(*told)
        raise _refusal(teller, said, "no notice of a sentinel")


def write_identity(identity: Identity) -> str:
    """An identity as text for the store."""
    return json.dumps(vars(identity))


def read_identity(rank: int, said: bytes) -> Identity:
    """The identity that a rank has written. Raises ArgumentError if these bytes are no identity."""
    told = _fields(said)
    if (
        _has_kinds(Identity, told)
        and _is_address(told["address"])
        and len(told["common"]) <= _MOST_COMMON
        and _COMMON.issuperset(told["common"])
    ):
        return Identity(**told)
    raise _refusal(rank, said, "no identity of a process")


def _has_kinds(record: type[Identity | MeetingNotice], told: dict[str, Any]) -> bool:
    """Has each field of this record, and nothing else, a text or a number of a sensible length?"""
    return {key: type(value) for key, value in told.items()} == record.__annotations__ and all(
        len(value) <= _MOST_TEXT if type(value) is str else 0 <= value < _MOST_NUMBER for value in told.values()
    )


def _fields(said: bytes) -> dict[str, Any]:
    told = _json(said)
    return told if type(told) is dict else {}


def _json(said: bytes) -> Any:
    """The value of these bytes; None if they have none, or are too many."""
    try:
        return json.loads(said) if len(said) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return None


def _frozen(said: Any, depth: int = 2) -> Any:
    """A value with tuples in place of lists, as deep as a map of hosts has them."""
    return tuple(_frozen(one, depth - 1) for one in said) if type(said) is list and depth else said


def _are_ranks(said: Sequence[Any], size: int) -> bool:
    return all(type(rank) is int and 0 <= rank < size for rank in said)


def _is_map(said: Sequence[Any], size: int) -> bool:
    """Does this list the ranks of each host, with each rank once? Or is it empty?"""
    if not all(type(host) is tuple and _are_ranks(host, size) for host in said):
        return False
    try:
        return not said or Hosts(tuple(said)).ranks == size
    except ArgumentError:
        return False


def _is_address(said: str) -> bool:
    with suppress(ValueError):
        return not said or bool(ip_address(said))
    return False


def _refusal(rank: int, said: bytes, what: str) -> ArgumentError:
    return ArgumentError(
        f"at the store where the ranks meet, rank {rank} says {_brief.repr(bytes(said[:200]))}, which is {what}: "
        "another program, or another version of unisono, writes to this store. Use an address and a port of this job's "
        "own (MASTER_ADDR, MASTER_PORT), which others cannot reach"
    )


def message_of(error: BaseException, rank: int) -> MeetingMessage:
    """What a rank writes for the others when it ends the meeting by this error."""
    match error:
        case WaitTimeout():
            return MeetingMessage(missing=error.missing or (rank,))  # empty: rank 0's own store has not answered
        case PeerGone():
            return MeetingMessage(dead=(error.rank, error.pid))
        case OutOfMemory():
            return MeetingMessage(full=f"rank {rank}: {error}"[:_MOST_WORDS])
        case ArgumentError():
            return MeetingMessage(reason=str(error)[:_MOST_WORDS])
    words = f"rank {rank} gave up init(): {type(error).__qualname__}: {error}"
    return MeetingMessage(reason=words[:_MOST_WORDS])


def why_ended(message: MeetingMessage, rank: int, waited_s: float) -> Exception | None:
    """The error that this rank raises if others have ended the meeting with this message; None: there is a group."""
    if message.reason:
        return ArgumentError(message.reason)
    if message.full:
        return OutOfMemory(message.full)
    if message.missing:
        return missing(message.missing, rank, waited_s)
    if message.dead:
        return died(message.dead[0], message.dead[1], rank)
    return None


def missing(ranks: tuple[int, ...], rank: int, waited_s: float, details: str = "") -> WaitTimeout:
    """These ranks have not come, or not done their part, in time."""
    if rank in ranks:
        details = " The others waited for this rank no longer: let all ranks call init() again." + details
    return WaitTimeout("init()", waited_s, ranks, rank, details)


def died(rank: int, pid: int, waiting: int) -> PeerGone:
    """The process of a rank has ended."""
    return PeerGone(rank, pid, Departure(DepartureKind.DIED, "died"), waiting, "init()", met=False)


def store_closed(where: str, rank: int, cause: BaseException) -> PeerGone | PeerFailed:
    """The store has closed the connection. It is run by rank 0's process, or by the launcher there."""
    brief = str(cause).partition("\n")[0].rstrip(".")
    words = f"the store where the ranks meet{where and f', at {where},'} has closed the connection ({brief})"
    if rank == 0:
        reason = f"{words}: the process that runs it, mostly the launcher, has ended. Start all ranks again."
        return PeerFailed(0, reason, 0, "init()")
    how = Departure(DepartureKind.DIED, f"cannot be reached, as {words},")
    return PeerGone(0, 0, how, rank, "init()", met=False)


def store_silent(where: str, rank: int, waited_s: float, silent_s: float) -> WaitTimeout:
    """The store is connected and does not answer."""
    words = f" The store where the ranks meet{where and f', at {where},'} has not answered for {silent_s:.3g} s: "
    words += "the process that runs it, rank 0's or the launcher's, is stopped, or its host is cut off."
    return WaitTimeout("init()", waited_s, (0,) if rank else (), rank, words)


def sizes_differ(rank: int, size: int, notice: MeetingNotice) -> ArgumentError:
    """This rank and rank 0 were given different sizes."""
    return ArgumentError(
        f"the ranks have been told different sizes: rank 0 {notice.size}, rank {rank} {size}. Give all ranks "
        "of the job the same WORLD_SIZE, or the same size in init()"
    )


def other_job(where: str, rank: int, job: str, notice: MeetingNotice) -> ArgumentError:
    """The ranks of another job meet at this store."""
    return ArgumentError(
        f"at {where or 'the store'}, where this process, rank {rank} of {_named(job)}, should meet its job, the ranks "
        f"of {_named(notice.job)} meet: their rank 0 is {notice.who}. Give each job a port of its own: set MASTER_PORT"
    )


def _named(job: str) -> str:
    return f"job {job!r}" if job else "a job without a name"


def twice(where: str, rank: int, who: str) -> ArgumentError:
    """Two processes have come as one rank."""
    return ArgumentError(
        f"another process has come as rank {rank} already{where and f' at {where}'}: {who}. Give each process of a job "
        "a RANK of its own, and each job a port of its own: set MASTER_PORT"
    )


def unreachable(rank: int, address: str, port: int, tried_s: float, cause: str) -> ArgumentError:
    """The host where rank 0 should be has no address, or there is no way to it."""
    return ArgumentError(
        f"rank {rank} has tried for {tried_s:.3g} s to reach {address}, port {port}, where rank 0 should be: {cause}. "
        f"{_MOVE}"
    )
