"""`join`: a new process takes the place of a rank that has ended, when the other ranks let it in with `grow`.

A job has a join listener: a Unix socket whose name follows from the job's name. One rank listens; when this rank has
gone, the next one listens under the same name. The name is public. So the kernel says which process connects, and its
request is JSON, read for numbers only.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from ...base.config import Config
from ...base.errors import ArgumentError, OutOfMemory, PeerFailed, WaitTimeout
from ...base.fd_channel import Newcomers, PlainChannel, connect
from ...base.records import DepartureKind
from ...base.units import hints_timeout_s, ranks_text, seconds
from ...engine.host import interpreter
from ...engine.memory.arena import Arena
from ...engine.memory.sub_arena import SubArena
from ...engine.process.alive import start_ticks
from ..group.current import get_default, get_job, set_default
from ..group.group import Group
from ..group.survivors import MOST_NAMED
from ..rendezvous.launchers import find_job, integer
from .store_door import address_of, ask_at

ANY = -1
"""Stands for any free place."""
_MOST_REQUESTS = 128  # the most processes that may wait for a place


@dataclass(frozen=True)
class JoinRequest:
    """A process that wants to join. rank: the place in the world that it wants."""

    channel: PlainChannel
    pid: int
    ticks: int
    rank: int

    def refuse(self, why: str) -> None:
        """Send the process away for good."""
        with suppress(OSError):
            self.channel.send(["refused", why])
        self.channel.close()

    @property
    def is_there(self) -> bool:
        """Does the process still wait? It sends no second message."""
        with suppress(EOFError, OSError):
            return self.channel.poll() is None
        return False


class JoinListener:
    """The listening end of the connections. Raises OSError if another process has the name."""

    def __init__(self, job: str) -> None:
        self.job = job
        self._newcomers = Newcomers(socket_name(job))
        self._requests: list[JoinRequest] = []

    def wait(self, most_s: float) -> None:
        """Return when a process comes or goes, or after most_s seconds."""
        poller = select.poll()
        poller.register(self._newcomers.listener, select.POLLIN)
        for channel in (*self._newcomers.silent, *(request.channel for request in self._requests)):
            poller.register(channel, select.POLLIN)
        poller.poll(most_s * 1e3)

    def requests(self) -> Sequence[JoinRequest]:
        """The processes that have come and still wait, in this order."""
        for channel, message in self._newcomers.first_messages():
            self._hear(channel, message)
        waiting = []
        for request in self._requests:
            if request.is_there:
                waiting.append(request)
            else:
                request.channel.close()
        self._requests = waiting
        return tuple(waiting)

    def forget(self, request: JoinRequest) -> None:
        """Drop a request without closing its connection."""
        self._requests.remove(request)

    def close(self) -> None:
        """Stop listening. Waiting processes ask the next join listener."""
        self._newcomers.close()
        for request in self._requests:
            request.channel.close()
        self._requests = []

    def _hear(self, channel: PlainChannel, message: object) -> None:
        """Take in the request of a process, if its first message is one."""
        pid, ticks = channel.peer.pid, start_ticks(channel.peer.pid)
        match message:
            case ["join", int(rank), int(said)] if rank >= ANY and ticks and len(self._requests) < _MOST_REQUESTS:
                request = JoinRequest(channel, pid, ticks, rank)
                if said == pid:
                    self._requests.append(request)
                else:
                    request.refuse(f"process {said}, which is {pid} here, runs in another container than the ranks")
            case _:
                channel.close()


def socket_name(job: str) -> str:
    """The name of the socket for a job of this user."""
    return "unisono join " + sha256(f"{os.getuid()} {job}".encode(errors="surrogatepass")).hexdigest()


def job_name(named: str | None, environ: Mapping[str, str]) -> str:
    """The name of the job: the given one, or else a name that all processes of the run or launcher know.

    Raises ArgumentError if there is none.
    """
    if named or get_job():
        return f"named {named}" if named else get_job()
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        run = environ.get("TORCHELASTIC_RUN_ID", "")
        return f"meets at {environ['MASTER_ADDR']}:{environ['MASTER_PORT']} {run}"
    job = find_job(environ)
    if job is not None and not job.refusal:
        return f"job {job.name}"
    raise ArgumentError(
        "door: nothing in the environment says which job this is; pass the same name to unisono.grow() on its ranks, "
        "and to unisono.join() in processes that join it: door='training'"
    )


_RETRY_S = 0.02
"""How often to look for a join listener. `join_admission` waits a little longer when it has just begun to listen."""
_ASK_S = 0.0002
OUTCOME_S = 10.0
"""How long a process may take to accept an offered place, and how long it waits for the outcome."""


class Offer(NamedTuple):
    """What the listening rank tells a process that it lets in. All ranks are ranks of the world.

    rank: the place of the process.
    members, newcomers: all ranks of the larger group, and its new ranks.
    host: the listening rank. It lends the memory, and says on its board how the attempt has ended.
    start: where the memory of the larger group begins in the heap of `host`.
    number: the number of the attempt.
    """

    rank: int
    members: tuple[int, ...]
    newcomers: tuple[int, ...]
    host: int
    start: int
    number: int
    timeout_s: float

    @classmethod
    def read(cls, said: Any, arena: Arena, channel: PlainChannel) -> Offer:
        """The offer in a message. Raises ArgumentError unless a rank of this world has sent it."""
        pid = channel.peer.pid
        boards = map(arena.board, range(arena.size))
        if (pid, start_ticks(pid)) not in [(board.pid, board.ticks) for board in boards]:
            raise ArgumentError(f"process {pid}, which listens for processes that join this job, is no rank of it")
        rank, members, newcomers, *rest = said
        return cls(rank, tuple(members), tuple(newcomers), *rest)


@hints_timeout_s
def join(
    door: str | None = None, *, rank: int | None = None, timeout_s: float | None = None, config: Config | None = None
) -> Group:
    """The group of a job that runs already, in which this new process takes the place of a rank that has ended.

    Waits at most timeout_s (else the config's) until the ranks of the job let it in: see `grow`. Their group becomes
    the default group of this process. `group.newcomers` lists the new ranks, which do not have the job's state yet.

    In a job over several hosts, this process may be on any host, and has a new rank.

    door: the name of the job, or its address, if its ranks pass one to `grow`; None: the environment says which job it
    is, by MASTER_ADDR and MASTER_PORT, or by a launcher's variables.
    rank: the place in the world of a job on one host to take; None: the place in the environment's RANK, or any.

    Raises WaitTimeout if no rank lets it in. Raises ArgumentError if this process has a group already, was a rank of
    this job itself, or cannot share memory with the ranks.
    """
    limit_s = None if timeout_s is None else seconds(timeout_s)
    if (there := get_default()) is not None and not there.closed:
        raise ArgumentError(f"this process is already rank {there.rank} of {there.size}: only a new one can join a job")
    job, address = job_name(door, os.environ), address_of(door, os.environ)
    config = config or Config.from_env()
    wanted = rank if rank is not None else integer(os.environ, "RANK")
    if wanted is not None and wanted < 0:
        raise ArgumentError(f"rank={wanted}: a rank is at least 0; leave it out to take any place")
    group = enter(job, ANY if wanted is None else wanted, limit_s, config, address)
    set_default(group)
    return group


def enter(job: str, rank: int, timeout_s: float | None, config: Config, address: str = "") -> Group:
    """The group that a new process is let into. address: the door over hosts. Raises as `join` does."""
    began = time.monotonic()
    deadline = began + (config.timeout_s if timeout_s is None else timeout_s)
    interpreter()  # load it now: once the ranks have let this process in, they wait for it
    while True:
        details = f" No process of this user and network namespace listens for processes that join this job ({job}): "
        details += "see unisono.grow()."
        with suppress(EOFError, OSError):
            channel = connect(socket_name(job), deadline)
            details = f" No rank of this job ({job}) has let it in: see unisono.grow()."
            try:
                channel.send(["join", rank, os.getpid()], deadline=deadline)
                group = _follow(channel, config, deadline)
            finally:
                channel.close()
            if group is not None:
                return group
        if address:
            said = ask_at(address, config, deadline)
            if isinstance(said, Group):
                return said
            details = f"{details} {said}."
        if time.monotonic() >= deadline:
            raise WaitTimeout("join()", time.monotonic() - began, (), details=details)
        time.sleep(_RETRY_S)


def _follow(channel: PlainChannel, config: Config, deadline: float) -> Group | None:
    """Wait until the listening rank lets this process in; None: it does not. Raises EOFError if the rank has gone."""
    message = channel.receive(deadline)
    match message.value:
        case ["refused", str(why)]:
            raise ArgumentError(f"the ranks of this job do not let this process in: {why}")
    if len(message.fds) != 1:
        for fd in message.fds:
            os.close(fd)
        raise EOFError("the process that listens says nothing that a rank would say")
    try:
        arena = Arena.attach(message.fds[0])
    except BaseException as error:
        os.close(message.fds[0])
        if isinstance(error, OutOfMemory):
            with suppress(OSError):  # it has gone
                channel.send("full", deadline=deadline)
        raise
    try:
        offer = Offer.read(message.value, arena, channel)
        host = arena.board(offer.host)
        with suppress(EOFError, OSError):
            # From here on the limit does not count: the listening rank tells the outcome, or its end does.
            channel.send("here", deadline=time.monotonic() + OUTCOME_S)
            channel.receive(time.monotonic() + OUTCOME_S)
        if host.growth(offer.number) != offer.start:
            arena.close()
            return None
    except BaseException:
        arena.close()
        raise
    return _take_place(arena, offer, config)


def _take_place(arena: Arena, offer: Offer, config: Config) -> Group:
    """Use the memory of the rank that has ended, and of the larger group."""
    mine, of = offer.members.index(offer.rank), offer.members.index(offer.host)
    name = ranks_text(offer.members, MOST_NAMED)
    world: Group | None = None
    try:
        arena.take_place(offer.rank)
        world = Group(arena, offer.rank, config=config)
        world.give_up(PeerFailed(offer.rank, f"has come later, into group {name!r}", offer.rank, "", whole=True))
        memory = world.host.lender.borrow(offer.start, offer.members, mine, of)
        group = Group(memory, mine, name=name, config=world.host.config, parent=world)
        group.timeout_s, group.made_of = offer.timeout_s, None
        group.newcomers = tuple(offer.members.index(place) for place in offer.newcomers)
        until_all_are_in(group, memory, "join()")
    except BaseException as error:
        arena.board(offer.rank).set_gone(DepartureKind.RAISED, f"raised {type(error).__name__}: {error} in join()")
        if world is None:
            arena.close()
        else:
            world.close()
        raise
    return group


def until_all_are_in(group: Group, memory: SubArena, call: str) -> None:
    """Wait until all members that have not gone have begun to use the group's memory. Raises WaitTimeout."""
    began = time.monotonic()
    while missing := [
        rank for rank in range(group.size) if not (memory.used_by(rank) or group.liveness.gone(rank))
    ]:  # fmt: skip
        if (waited_s := time.monotonic() - began) > group.timeout_s:
            details = " They do not use its memory yet."
            raise WaitTimeout(call, waited_s, missing, group.rank, details, group.world_ranks)
        time.sleep(_ASK_S)
