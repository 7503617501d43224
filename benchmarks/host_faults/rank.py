"""What a rank of a trial does: it waits in some call, is told what has happened, and goes on with who is left."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tests.support.namespaces import enter, join

import unisono
from unisono.calls.p2p import irecv, isend, recv, send
from unisono.schedule import Hosts

from ..turns import Meeting, until

PLACES = ("gate", "send", "receive", "long call", "messages")
"""Where ranks wait when it happens. `gate`: in an all_reduce, which one rank has not begun. `send`, `receive`: for that
rank. `long call`: all are in an all_reduce of 32 MiB, `messages`: all send 4 MiB to all ranks of other hosts."""

LATE_PLACES = PLACES[:3]
"""Where somebody begins late."""

_SHORT, _LONG, _MESSAGE = 1000, 8 << 20, 1 << 20
_TIMES = 3
_END_S = 40.0


class Role(NamedTuple):
    """absent: who begins late, or never, what the others wait for. others: the same for ranks that share its host, if
    it is to be another one. limit_s: the time-out of calls.
    """

    hosts: Hosts
    names: tuple[str, ...]
    port: int
    place: str
    absent: int
    others: int
    limit_s: float

    @property
    def late(self) -> set[int]:
        if self.place not in LATE_PLACES:
            return set()
        return {self.absent} if self.place == "gate" else {self.absent, self.others}


def play(folder: str, role: Role) -> None:
    """One rank of a trial. It tells `waits R` before it waits, and `told R` when it has been told."""
    me, meeting = unisono.get_rank(), Meeting(folder)
    enter(role.names[role.hosts.host_of(me)])
    group, _ = join(me, role.hosts, role.port)
    calls = _calls(role, group)
    calls["warm up"]()
    unisono.barrier()
    meeting.tell(f"waits {me}", os.getpid())
    if me in role.late:
        until(lambda: meeting.has("go"), _END_S)
    error = _what_ends(calls[role.place], calls["gate"])
    said = {"at": time.monotonic(), "error": "" if error is None else type(error).__name__, "text": str(error or "")}
    meeting.tell(f"told {me}", said | {"named": _named(error), **_go_on(group, error)})
    until(lambda: meeting.has("over"), _END_S)
    group.close()
    os._exit(0)  # the carrier's threads may be in its calls


def _what_ends(*calls: Callable[[], None]) -> BaseException | None:
    try:
        for call in calls:
            call()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  it is told
        return error
    return None


def _named(error: BaseException | None) -> list[int]:
    match error:
        case unisono.PeerGone():
            return sorted(error.failed)
        case unisono.PeerFailed():
            return [error.rank]
        case unisono.WaitTimeout():
            return sorted(error.missing)
    return []


def _go_on(group: unisono.Group, error: BaseException | None) -> dict[str, Any]:
    """Make a smaller group and a call in it, where something has failed."""
    if error is None:
        return {"after": "same group"}
    without = error.missing if isinstance(error, unisono.WaitTimeout) else ()
    began = time.monotonic()
    try:
        smaller = group.shrink(without=without)
        tensor = torch.full((_SHORT,), 2.0**group.rank)
        unisono.all_reduce(tensor, group=smaller)
    except Exception as after:  # noqa: BLE001  it is told
        return {"after": type(after).__name__, "seconds": time.monotonic() - began}
    left = sorted(group.world_ranks.index(rank) for rank in smaller.world_ranks)
    right = tensor[-1].item() == sum(2.0**rank for rank in left)
    return {"after": "right" if right else "wrong data", "left": left, "seconds": time.monotonic() - began}


def _calls(role: Role, group: unisono.Group) -> dict[str, Callable[[], None]]:
    """What a rank does in each place; and `warm up`."""
    me, hosts = group.rank, role.hosts
    group.timeout_s = role.limit_s
    peer, callers = _partners(role, me)
    far = [rank for rank in range(hosts.ranks) if hosts.host_of(rank) != hosts.host_of(me)]
    long, message, taken = torch.empty(_LONG), torch.full((_MESSAGE,), float(me)), torch.empty(_MESSAGE)

    def sums(tensor: torch.Tensor) -> None:
        unisono.all_reduce(tensor.fill_(2.0**me))
        _check(tensor, 2.0**hosts.ranks - 1)

    def receive(rank: int) -> None:
        recv(taken, rank)
        _check(taken, rank)

    def sends() -> None:
        for rank in callers:
            receive(rank)
        if peer >= 0:
            send(message, peer)

    def receives() -> None:
        for rank in callers:
            send(message, rank)
        if peer >= 0:
            receive(peer)

    def gate() -> None:
        sums(torch.empty(_SHORT))

    def long_calls() -> None:
        for _ in range(_TIMES):
            sums(long)

    def exchange(count: int, times: int) -> None:
        parts = {rank: torch.empty(count) for rank in far}
        for _ in range(times):
            works = [isend(message[:count], rank) for rank in far] + [irecv(parts[rank], rank) for rank in far]
            for work in works:
                work.wait()
            for rank in far:
                _check(parts[rank], rank)

    def warm_up() -> None:
        gate()
        exchange(3, 1)

    return {
        "gate": gate, "send": sends, "receive": receives, "long call": long_calls, "warm up": warm_up,
        "messages": lambda: exchange(_MESSAGE, 2 * _TIMES),
    }  # fmt: skip


def _partners(role: Role, me: int) -> tuple[int, list[int]]:
    """With whom this rank talks; or, if it is one of those that the others talk with, who does."""
    home = role.hosts.host_of(role.absent)
    talkers = set(range(role.hosts.ranks)) - {role.absent, role.others}
    peers = {rank: role.others if role.hosts.host_of(rank) == home else role.absent for rank in talkers}
    return peers.get(me, -1), [rank for rank in sorted(peers) if peers[rank] == me]


def _check(tensor: torch.Tensor, value: float) -> None:
    if not bool((tensor == value).all()):
        raise AssertionError(f"wrong data: {tensor[:3].tolist()} ... instead of {value}")
