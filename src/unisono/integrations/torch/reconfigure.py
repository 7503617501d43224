"""Groups whose ranks change: `torch.distributed._reconfigure`, from torch 2.15 on.

Each process has a store of its own, and a handle, which says who the process is and where its store listens. Ranks meet
as always, at the store of the first handle. So no other process is needed, such as one that has failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from hashlib import sha256
from itertools import starmap
from reprlib import repr as brief
from typing import Any

import torch._C._distributed_c10d as c10d
from torch.distributed import PrefixStore, Store, distributed_c10d

from ...base.config import Config
from ...base.errors import ArgumentError, NotInitialized
from ...base.release import NAME
from ...engine.memory.arena import Arena
from ...engine.process.alive import start_ticks
from ...hosts.addresses import is_loopback, own_address, store_host, try_to_reach
from ...observe.live.meeting_page import meeting_page, waits
from ...ranks.group.group import Group
from ...ranks.rendezvous.asked_store import AskedStore
from ...ranks.rendezvous.entries import read, write
from ...ranks.rendezvous.identity import Identity
from ...ranks.rendezvous.rendezvous_messages import died, missing, store_closed
from ...ranks.rendezvous.stores import tcp_store
from .group_methods import Calls
from .join_group import join, keep, leave_when_dropped, naming, replace
from .to_torch import DONE, as_torchs

_LOOPBACK, _SERVE_S = "127.0.0.1", 10.0
_PROBE_S = 0.5  # how often a rank asks whether the process that it waits for, on another host, still listens
_world: Any = distributed_c10d._world  # noqa: SLF001  torch's table of groups


def unconnected(rank: int, size: int, name: str, timeout_s: float, config: Config | None) -> Group:
    """A group that no other rank has joined. Its calls raise NotInitialized: another one is to take its place."""
    if not 0 <= rank < size:
        raise ArgumentError(f"rank: got {rank}, expected 0 to {size - 1} in a group of {size}")
    config = (config or Config.from_env()).replace(timeout_s=timeout_s)
    group = Group(Arena.create(size, config), rank, name=name, config=config)
    why = "has not been initialized. Call reconfigure() before issuing collectives, with the handles of all its ranks"
    group.give_up(NotInitialized(f"process group {name!r} {why}"))
    keep(group)
    return group


class Reconfigurable(Calls):
    """The methods by which the ranks of a process group change."""

    backend: Any
    _seat: Seat | None = None

    @property
    def supports_reconfigure(self) -> bool:  # type: ignore[override]  # torch asks for a property or an attribute
        """Can the ranks change? As torch has it, only in a group for one device."""
        return not self.elsewhere

    def get_reconfigure_handle(self) -> str:
        """What other processes need to form a group with this one. It stays the same."""
        with as_torchs():
            return self._own_seat().handle

    def reconfigure(self, opts: Any) -> c10d.Work:
        """Make this the group of the processes with these handles, all of which make this call.

        Calls of the group as it was raise PeerFailed from now on, also on ranks that are left out, and also if this
        call fails. Then those that go on make it again, with a new uuid.

        Raises WaitTimeout, which names the ranks that have not come, and PeerGone if one has died. Raises ArgumentError
        for handles or a uuid that cannot be used; then the group stays as it is.
        """
        with as_torchs():
            seat, old, handles = self._own_seat(), self.group, opts.handles
            ordered = sorted(handles) if isinstance(handles, set) else list(handles)
            limit_s = old.timeout_s if opts.timeout is None else opts.timeout.total_seconds()
            members = seat.members(opts.uuid, ordered)
            old.abort(f"its ranks change, by reconfigure() with uuid {opts.uuid}")
            new, store = seat.meet(opts.uuid, members, limit_s, old.name, old.engine.config)
            new.timeout_s = old.timeout_s
            whole = _world.default_pg is self
            replace(old, new, f"reconfigured {opts.uuid}" if whole else "", whole=whole)
            self._become(new, store)
            if whole:
                distributed_c10d._update_default_pg(_world.default_pg)  # noqa: SLF001  it notes the rank
                _world.pg_group_ranks[self] = {rank: rank for rank in range(new.size)}
                _world.group_count = (
                    opts.uuid + (1 << 64) << 20
                )  # of which new_group makes names: the same on all ranks
            elif self not in _world.pg_map:
                leave_when_dropped(self, new)
        return DONE

    def _own_seat(self) -> Seat:
        if self.elsewhere:
            raise ArgumentError(f"a group with multiple backends cannot be reconfigured. Make one for {NAME} alone.")
        if self._seat is None:
            store: Any = self.get_group_store()  # type: ignore[attr-defined]  # the group's
            self._seat = Seat(store_host(store))
        return self._seat

    def _become(self, group: Group, store: Store) -> None:
        """Go on as this group. What ranks count restarts."""
        self.group, self._store, self.backend.group = group, store, group
        self._barriers = self._number = self._splits = 0


class Seat:
    """The part of this process in the meetings of one process group. handle: what the other processes know it by."""

    def __init__(self, toward: str) -> None:
        """toward: a host on the way to the other processes, or ""."""
        address = own_address(toward)
        self._me = Identity.mine(address=own_address("") if is_loopback(address) else address)
        self._store = tcp_store(_LOOPBACK, 0, 1, time.monotonic() + _SERVE_S, serve=True)
        self.handle = _handle(self._store.port, self._me)
        self._used: set[int] = set()

    def _way_to(self, other: Identity) -> str:
        return _LOOPBACK if other.network == self._me.network else other.address

    def members(self, uuid: int, handles: Sequence[str]) -> list[_Member]:
        """The processes with these handles. Raises ArgumentError if they cannot form a group, or not with this uuid."""
        members = [_read(handle) for handle in handles]
        if len(set(handles)) < len(handles) or self.handle not in handles:
            raise ArgumentError(
                f"got {len(handles)} handles, {len(set(handles))} of them different, {handles.count(self.handle)} of "
                "them this rank's. Pass the handle of each rank once."
            )
        if strange := [rank for rank, (_, one) in enumerate(members) if not self._way_to(one)]:
            raise ArgumentError(
                f"rank {strange[0]} ({members[strange[0]][1].where}) has no address that other hosts can reach. "
                "Create its group with a store at an address that they can reach."
            )
        if uuid in self._used:
            raise ArgumentError(f"uuid: got {uuid}, which was already used. Use a new one for each reconfigure().")
        self._used.add(uuid)
        return members

    def meet(
        self, uuid: int, members: Sequence[_Member], limit_s: float, name: str, config: Config
    ) -> tuple[Group, Store]:
        """The group of these processes, once all have come, and their store. A process that has died ends the wait."""
        deadline, rank = time.monotonic() + limit_s, [one for _, one in members].index(self._me)
        told = sha256("\n".join(starmap(_handle, members)).encode()).hexdigest()
        probe_at = 0.0

        def look(awaited: int) -> str:
            """Raise PeerGone for a process of this machine that has ended, and for the awaited one if it has."""
            nonlocal probe_at
            for other, (_, one) in enumerate(members):
                beside = (one.boot, one.namespaces) == (self._me.boot, self._me.namespaces)
                if beside and start_ticks(one.pid) != one.ticks:
                    raise died(other, one.pid, rank)
            if awaited != rank and time.monotonic() > probe_at:
                probe_at = time.monotonic() + _PROBE_S
                port, one = members[awaited]
                if all(try_to_reach(self._way_to(one), port)):
                    raise died(awaited, one.pid, rank)
            return ""

        with naming(name), meeting_page(rank, len(members), limit_s, config.stall_warning_s):
            (port, first), look_at_first = members[0], partial(look, 0)
            place = self._store if rank == 0 else _store_at(self._way_to(first), port, rank, deadline, look_at_first)
            store = PrefixStore(f"{uuid}", place)
            with closing(AskedStore(store, rank, deadline, look_at_first)) as asked:
                agreed = asked.set_first("handles", told) == told.encode()
        if not agreed:
            raise ArgumentError(
                f"uuid {uuid}: another rank passed different handles, or a different order. Pass the same handles on "
                "all ranks, with a new uuid."
            )
        left_s = max(0.0, deadline - time.monotonic())
        return join(store, rank, len(members), name, left_s, config=config, apart=True, why_absent=look), store


_Member = tuple[int, Identity]
"""The port of a process's store, and its identity."""


def _handle(port: int, one: Identity) -> str:
    return f"{port} {write(one)}"


def _read(handle: str) -> _Member:
    port, _, identity = handle.partition(" ")
    with suppress(ArgumentError, ValueError):
        member = int(port), read(Identity, identity.encode(), 0)
        if 0 < member[0] < 1 << 16 and _handle(*member) == handle:
            return member
    raise ArgumentError(
        f"{brief(handle)} is not a handle of {NAME}. Pass what get_reconfigure_handle() returns on each rank. If "
        "ranks ask for Gloo, set UNISONO_AS=gloo for all of them."
    )


def _store_at(address: str, port: int, rank: int, deadline: float, look: Callable[[], object]) -> Store:
    """The store of the first process. Raises PeerGone if it no longer listens, and WaitTimeout."""
    began, where = time.monotonic(), f"{address}:{port}"
    waits((0,), "to answer", where)
    look()
    try:
        return tcp_store(address, port, 1, deadline, serve=False, look=look)
    except TimeoutError as error:
        details = f" Its store at {where} does not answer: it is stopped, or cut off."
        raise missing((0,), rank, time.monotonic() - began, details) from error
    except RuntimeError as error:
        raise store_closed(where, rank, error) from error
