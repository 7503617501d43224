"""How processes that a launcher started find each other, and which of them share memory.

They meet at a key-value store of torch's (`stores`). There, each process writes its identity, with the random name of
a Unix socket. Rank 0 publishes which ranks share a host. The first rank of each host makes an arena, and hands its
file descriptor to the others through the socket. When all have it, rank 0 ends the meeting.
Ranks do not trust the store (`rendezvous_messages`): the kernel says which processes send and get the descriptor
(`handover`).
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]  # not in torch's __all__

from ...base.config import Config
from ...base.errors import ArgumentError, WaitTimeout
from ...engine.memory.arena import Arena
from ...engine.memory.board import MAX_RANKS
from ...hosts.addresses import is_loopback, own_address
from ...observe.live.meeting_page import meeting_page
from ...schedule import Hosts
from .identity import Identity
from .launchers import Launch
from .meeting import Meeting, may_come
from .stores import meeting_store

_LOOPBACK = "127.0.0.1"

_RETRY_S = 0.005

_timed_out: "set[Launch]" = set()  # the launches with a time-out in this process's last call

kept: list[Store] = []
"""The last store: this process may be its server, as rank 0, and torch's own process groups may meet there, too."""


class MeetingResult(NamedTuple):
    """The memory of a rank's host, and on several hosts what it takes to speak to the others.

    On one host, only arena, hosts and the meeting's name are set.

    hosts: which ranks share memory.
    store: where all ranks can leave messages for each other.
    identities: on the first rank of this host, of all its ranks; on other ranks at least their own.
    names: the names of the hosts.
    address: where other hosts reach this process.
    secret: only the ranks know it.
    name: of the meeting; "": the ranks have not met at a store.
    """

    arena: Arena
    hosts: Hosts
    store: Store | None = None
    identities: Mapping[int, Identity] | None = None
    names: tuple[str, ...] = ()
    address: str = ""
    secret: bytes = b""
    name: str = ""


def met_in_run(rank: int, arena: Arena, hosts: Hosts, path: str, secret: bytes) -> MeetingResult:
    """The result for a rank of a local world: its parent has told it all this, and hosts are parts of one machine.

    path: a file that becomes the store.
    """
    own, boards = Identity.mine(), {peer: arena.board(peer) for peer in hosts.beside(rank)}
    identities = {peer: own._replace(pid=board.pid, ticks=board.ticks) for peer, board in boards.items()}
    names = tuple(f"{own.host}/{number}" for number in range(len(hosts.members)))
    return MeetingResult(arena, hosts, FileStore(path), identities, names, _LOOPBACK, secret)


def meet(
    rank: int,
    size: int,
    store: Store,
    timeout_s: float,
    config: Config | None = None,
    why_absent: Callable[[int], str] = may_come,
    *,
    job: str = "",
    stale: bool = False,
) -> MeetingResult:
    """Meet the `size` ranks at this store. why_absent, job, stale: see `Meeting`.

    Raises WaitTimeout, which names the ranks that did not come, and PeerGone if a rank died meanwhile, or the store.
    Raises OutOfMemory on every rank. Raises ArgumentError on every rank that comes, if the ranks cannot form a group:
    threads of one process, a rank that will not come, different sizes, hosts with different versions or settings,
    hosts that cannot reach each other. Raises ArgumentError if another job meets here, and for content of the store
    that no rank would have written.
    """
    if size > MAX_RANKS:
        raise ArgumentError(f"size: got {size}, expected 1 to {MAX_RANKS} ranks")
    config = config or Config.from_env()
    with meeting_page(rank, size, timeout_s, config.stall_warning_s):
        meeting = Meeting(rank, size, store, timeout_s, config, why_absent, job=job, stale=stale)
        arena, told = meeting.hold()
    members, names, neighbours = zip(*told.hosts, strict=True)
    hosts = Hosts(members)
    if not hosts.spans:
        return MeetingResult(arena, hosts, name=meeting.name)
    arena.neighbours = neighbours[hosts.host_of(rank)]
    beside = {one: identity for one, identity in meeting.identities.items() if one in hosts.beside(rank)}
    address = beside[rank].address or _LOOPBACK
    if told.toward and is_loopback(address):
        address = own_address(told.toward)
    part = PrefixStore(meeting.name, store)
    return MeetingResult(arena, hosts, part, beside, names, address, bytes.fromhex(told.secret), meeting.name)


def meet_in_rounds(launch: Launch, deadline: float, config: Config | None = None) -> MeetingResult:
    """Meet the ranks of a launch. Raises as `meeting_store` and `meet` do.

    A meeting ends for all ranks when the time of one of them is up. A rank in its first call of
    `init()` then hears at once which ranks are missing. A rank that calls `init()` again may do so while others are in
    their first call: their time-out says nothing about its own call. So it waits for the next meeting, until its own
    time is up.
    """
    began, again = time.monotonic(), launch in _timed_out
    _timed_out.discard(launch)
    try:
        with meeting_store(launch, deadline) as store:
            kept[:] = [store]
            while True:
                left_s = deadline - time.monotonic()
                try:
                    return meet(launch.rank, launch.size, store, left_s, config, job=launch.name, stale=launch.stale)
                except WaitTimeout:
                    if not again or time.monotonic() >= deadline:
                        raise
                    time.sleep(_RETRY_S)
    except WaitTimeout as error:
        _timed_out.add(launch)
        waited_s = time.monotonic() - began
        raise WaitTimeout(error.call, waited_s, error.missing, launch.rank, error.details) from error
