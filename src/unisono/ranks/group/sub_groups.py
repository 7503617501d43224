"""Make a sub-group in the memory of the world. Its members take part, nobody else, and no store: it may have gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...base.errors import OutOfMemory, PeerGone, WaitTimeout
from ...engine.memory.arena import NO_ROOM
from ...engine.memory.sub_arena import SubArena
from ...hosts.span import Span
from ..failures.abort import check_abort, check_given_up
from .group import Group

_ASK_S, _ASK_SELDOM_S = 0.0002, 0.005


def make_sub_group(
    parent: Group, rank: int, world_ranks: Sequence[int], name: str, timeout_s: float, *, in_call: bool = False
) -> Group:
    """The group of these ranks of the world, of which this is number `rank`; all of them call this, and nobody else.

    parent: the group of which it is made, and whose abort ends it. in_call: the parent spans hosts, and needs this
    group, of its ranks on this host, in its current call.

    On each host the first member lends the memory, and says where in its region table, which only ranks of the world
    can write. Raises OutOfMemory on all members of a host, PeerGone if its first one has gone, WaitTimeout.
    """
    world, members = parent.world, tuple(world_ranks)
    lender = world.host.lender
    lender.collect()
    hosts = world.hosts.restrict(members)
    making = _Making(parent, rank, members, name, timeout_s, hosts.beside(rank), in_call)
    arena = making.lend() if rank == hosts.beside(rank)[0] else making.borrow()
    span = None
    if world.span is not None and hosts.spans:
        gid = int.from_bytes(making.key[:8], "little")
        span = Span(hosts, rank, gid, world.span.carrier, world.span.far)
    above = world if in_call else parent  # a group that its parent holds does not hold the parent
    group = Group(arena, rank, name=name, config=world.host.config, parent=above, span=span)
    group.timeout_s, group.made_of = timeout_s, parent
    return group


class _Making:
    def __init__(
        self,
        parent: Group,
        rank: int,
        members: tuple[int, ...],
        name: str,
        timeout_s: float,
        here: Sequence[int],
        in_call: bool,
    ) -> None:
        self._parent, self._world, self._rank, self._members = parent, parent.world, rank, members
        self._lender = self._world.host.lender
        self._timeout_s, self._call, self._here = timeout_s, f"making the process group {name!r}", here
        self._in_call = in_call
        self.key = self._lender.key(name, members, parent.span.gid if parent.span is not None else 0)

    def lend(self) -> SubArena:
        """The part of the first member on a host."""
        try:
            arena = self._lender.lend(self._members, self._rank, self._here)
        except OutOfMemory:
            self._announce(None)
            raise
        if len(self._here) > 1:
            try:
                self._announce(arena)
            except BaseException:
                self._lender.take_back(arena)
                raise
        return arena

    def _announce(self, arena: SubArena | None) -> None:
        why = " It has made many groups that their other members have not joined yet."
        self._until(lambda: self._lender.announce(self.key, arena, self._members[self._rank]) or None, why, ())

    def borrow(self) -> SubArena:
        """Everybody else's part."""
        number = self._here[0]
        first = self._members[number]
        board = self._lender.arena.board(first)
        table = self._lender.arena.region_table(first)

        def said() -> int | None:
            departure = self._world.liveness.left(first)  # before the table: it may have written there and gone
            start = table.find(self.key)
            if start is None and departure:
                raise PeerGone(number, board.pid, departure, self._rank, self._call, self._members)
            return start

        start = self._until(said, "", (number,))
        if start == NO_ROOM:
            raise OutOfMemory(f"the shared memory of rank {first} has no room for a new group: free tensors there")
        return self._lender.borrow(start, self._members, self._rank, number, self._here)

    def _until(self, ask: Callable[[], int | None], why: str, missing: tuple[int, ...]) -> int:
        """Ask until there is an answer. Raises WaitTimeout."""
        began, pause_s = time.monotonic(), _ASK_S
        while True:
            check_abort(self._parent, lambda: self._call)
            if self._in_call:
                check_given_up(self._parent, lambda: self._call)
            if (answer := ask()) is not None:
                return answer
            waited_s = time.monotonic() - began
            if waited_s > self._timeout_s:
                raise WaitTimeout(self._call, waited_s, missing, self._rank, why, self._members)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _ASK_SELDOM_S)
