"""What a rank of a trial does: it waits in some call, is told what has happened, and goes on with who is left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist
from tests.support.cluster import Cluster
from tests.support.namespaces import enter, join
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not in torch's __all__

import unisono
from unisono.calls.p2p import irecv, isend, recv, send
from unisono.schedule import Hosts

from ..reports import GLOO, OURS

PLACES = ("gate", "send", "receive", "long call", "messages")
"""Where ranks wait when it happens. `gate`: in an all_reduce, which one rank has not begun. `send`, `receive`: for that
rank. `long call`: all are in an all_reduce of 32 MiB, `messages`: all send 4 MiB to all ranks of other hosts."""

LATE_PLACES = PLACES[:3]
"""Where somebody begins late."""

_SHORT, _LONG, _MESSAGE = 1000, 8 << 20, 1 << 20
_TIMES = 3
_ASK_S = 0.002
_END_S = 40.0
dist: Any = torch_dist
"""What torch exports of Gloo is not in its stubs."""


class Role(NamedTuple):
    """absent: who begins late, or never, what the others wait for. others: the same for ranks that share its host, if
    it is to be another one. limit_s: the time-out of calls.
    """

    engine: str
    hosts: Hosts
    names: tuple[str, ...]
    port: int
    place: str
    absent: int
    others: int
    limit_s: float

    @property
    def late(self) -> set[int]:
        """Who begins late."""
        if self.place not in LATE_PLACES:
            return set()
        return {self.absent} if self.place == "gate" else {self.absent, self.others}


class Meeting:
    """Files by which ranks and who watches them tell each other how far they are; no fault touches them."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def tell(self, stage: str, value: Any = None) -> None:
        """Write it down."""
        draft = self._folder / f"{stage}.draft"
        draft.write_text(json.dumps(value))
        draft.rename(self._folder / stage)

    def heard(self, stage: str) -> Any:
        """What has been told; None, also if it has not."""
        path = self._folder / stage
        return json.loads(path.read_text()) if path.exists() else None

    def has(self, stage: str) -> bool:
        """Has it been told?"""
        return (self._folder / stage).exists()

    def wait(self, stage: str, most_s: float = _END_S) -> None:
        """Until it has been told, or for so long."""
        end = time.monotonic() + most_s
        while not self.has(stage) and time.monotonic() < end:
            time.sleep(_ASK_S)


def play(folder: str, role: Role) -> None:
    """One rank of a trial. It tells `waits R` before it waits, and `told R` when it has been told."""
    me, meeting = unisono.get_rank(), Meeting(folder)
    enter(role.names[role.hosts.host_of(me)])
    group, store = join(me, role.hosts, role.port)
    if role.engine == GLOO:
        calls: dict[str, Callable[[], None]] = _gloo(role, group, store)
    else:
        calls = _ours(role, group)
    calls["warm up"]()
    unisono.barrier()
    meeting.tell(f"waits {me}", os.getpid())
    if me in role.late:
        meeting.wait("go")
    said: dict[str, Any] = {}
    error = _what_ends(calls[role.place], calls["next"])
    said["at"], said["error"] = time.monotonic(), "" if error is None else type(error).__name__
    said |= {"text": str(error or ""), "named": _named(error)}
    if role.engine == OURS:
        said |= _go_on(group, error)
    meeting.tell(f"told {me}", said)
    meeting.wait("over")
    if role.engine == OURS:
        group.close()
    os._exit(0)  # Gloo's threads may be in its calls


def _what_ends(*calls: Callable[[], None]) -> BaseException | None:
    try:
        for call in calls:
            call()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  each engine has its own classes
        return error
    return None


def _named(error: BaseException | None) -> list[int]:
    """The ranks that an error names."""
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
        return {"after": "same group", "size": group.size}
    without = error.missing if isinstance(error, unisono.WaitTimeout) else ()
    began = time.monotonic()
    try:
        smaller = group.shrink(without=without)
        tensor = torch.full((_SHORT,), 2.0**group.rank)
        unisono.all_reduce(tensor, group=smaller)
    except Exception as after:  # noqa: BLE001  it is told
        return {"after": type(after).__name__, "why": str(after), "seconds": time.monotonic() - began}
    right = tensor[-1].item() == sum(2.0 ** group.world_ranks.index(rank) for rank in smaller.world_ranks)
    left = sorted(group.world_ranks.index(rank) for rank in smaller.world_ranks)
    return {"after": "right" if right else "wrong data", "left": left, "seconds": time.monotonic() - began}


def _ours(role: Role, group: unisono.Group) -> dict[str, Callable[[], None]]:
    """The calls of each place."""
    me, size = group.rank, group.size
    far = [rank for rank in range(size) if role.hosts.host_of(rank) != role.hosts.host_of(me)]
    peer, callers = _partners(role, me)
    long, message = torch.empty(_LONG), torch.full((_MESSAGE,), float(me))
    taken = {rank: torch.empty(_MESSAGE) for rank in range(size)}
    group.timeout_s = role.limit_s

    def sums(tensor: torch.Tensor) -> None:
        unisono.all_reduce(tensor.fill_(2.0**me))
        _check(tensor, 2.0**size - 1)

    def sends() -> None:
        for rank in callers:
            recv(taken[rank], rank)
            _check(taken[rank], rank)
        if peer >= 0:
            send(message, peer)

    def receives() -> None:
        for rank in callers:
            send(message, rank)
        if peer >= 0:
            recv(taken[peer], peer)
            _check(taken[peer], peer)

    def messages() -> None:
        for _ in range(2 * _TIMES):
            works = [isend(message, rank) for rank in far] + [irecv(taken[rank], rank) for rank in far]
            for work in works:
                work.wait()
            for rank in far:
                _check(taken[rank], rank)

    def warm_up() -> None:
        short_call()
        small = torch.full((3,), float(me))
        works = [isend(small, rank) for rank in far] + [irecv(torch.empty(3), rank) for rank in far]
        for work in works:
            work.wait()

    def long_calls() -> None:
        for _ in range(_TIMES):
            sums(long)

    def short_call() -> None:
        sums(torch.empty(_SHORT))

    places = {"gate": short_call, "send": sends, "receive": receives, "messages": messages, "long call": long_calls}
    return {**places, "warm up": warm_up, "next": short_call}


def _partners(role: Role, me: int) -> tuple[int, list[int]]:
    """With whom this rank talks; or, if it is one of those that the others talk with, who does."""
    home = role.hosts.host_of(role.absent)
    talkers = set(range(role.hosts.ranks)) - {role.absent, role.others}
    peers = {rank: role.others if role.hosts.host_of(rank) == home else role.absent for rank in talkers}
    return peers.get(me, -1), [rank for rank in sorted(peers) if peers[rank] == me]


def _gloo(role: Role, group: unisono.Group, store: Any) -> dict[str, Callable[[], None]]:
    """The same over flat Gloo, as far as it is compared."""
    me = group.rank
    options = dist.ProcessGroupGloo._Options()  # noqa: SLF001  torch has no public way
    own = Cluster.address(role.hosts.host_of(me))
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]  # noqa: SLF001
    options._timeout = timedelta(seconds=role.limit_s)  # noqa: SLF001
    gloo = dist.ProcessGroupGloo(PrefixStore("flat", store), me, group.size, options)
    long, message, taken = torch.empty(_LONG), torch.full((_MESSAGE,), float(me)), torch.empty(_MESSAGE)
    peer, callers = _partners(role, me)

    def sums(tensor: torch.Tensor) -> None:
        gloo.allreduce([tensor.fill_(2.0**me)], dist.AllreduceOptions()).wait()
        _check(tensor, 2.0**group.size - 1)

    def receives() -> None:
        for rank in callers:
            gloo.send([message], rank, 0).wait()
        if peer >= 0:
            gloo.recv([taken], peer, 0).wait()

    def long_calls() -> None:
        for _ in range(_TIMES):
            sums(long)

    def short_call() -> None:
        sums(torch.empty(_SHORT))

    return {
        "gate": short_call, "receive": receives, "long call": long_calls, "warm up": short_call, "next": short_call,
    }  # fmt: skip


def _check(tensor: torch.Tensor, value: float) -> None:
    if not bool((tensor == value).all()):
        raise AssertionError(f"wrong data: {tensor[:3].tolist()} ... instead of {value}")
