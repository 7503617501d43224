"""Make a sub-group in the memory of the world. Only its members take part, and no store, which may have gone.

On the other ranks a `NonMember` stands for the group, see `current`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from ...base.errors import InternalError, OutOfMemory, PeerGone, WaitTimeout
from ...engine.memory.arena import NO_ROOM
from ...engine.memory.sub_arena import SubArena
from ...hosts.span import Span
from .abort import check_abort
from .group import Group

_ASK_S, _ASK_SELDOM_S = 0.0002, 0.005


def make_sub_group(parent: Group, rank: int, world_ranks: Sequence[int], name: str, timeout_s: float) -> Group:
    """The group of these ranks of the world, of which this is number `rank`. Exactly these ranks call this.

    On each host, the first member lends the memory, and says where in its region table, which only ranks of the world
    can write. Raises OutOfMemory on all members of a host, PeerGone if its first member has gone, WaitTimeout.

    parent: the group that it is made of. Its abort ends the new group, too.
    """
    making = Making(parent, rank, world_ranks, name)
    began, pause_s, world = time.monotonic(), _ASK_S, parent.world
    while (awaited := making.missing()) is not None:
        check_abort(parent, lambda: making.call)
        departure = None if awaited == rank else world.liveness.left(world_ranks[awaited])
        if departure and making.missing() is not None:  # it may have said where, and gone
            pid = world.host.arena.board(world_ranks[awaited]).pid
            raise PeerGone(awaited, pid, departure, rank, making.call, world_ranks)
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            missing = () if awaited == rank else (awaited,)
            raise WaitTimeout(making.call, waited_s, missing, rank, making.why, world_ranks)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _ASK_SELDOM_S)
    group = making.group(parent)
    group.timeout_s = timeout_s
    return group


class Making:
    """A group that is being made; see `make_sub_group`. call: in words. why: what may keep this rank from it."""

    def __init__(self, parent: Group, rank: int, world_ranks: Sequence[int], name: str) -> None:
        self._parent, self._world, self._rank, self._members = parent, parent.world, rank, tuple(world_ranks)
        self._name, self.call, self.why = name, f"making the process group {name!r}", ""
        self._lender = self._world.host.lender
        self._lender.collect()
        self._hosts = self._world.hosts.restrict(self._members)
        self._here = self._hosts.beside(rank)
        self._key = self._lender.key(name, self._members, parent.gid)
        self._steps = self._lend() if rank == self._here[0] else self._borrow()
        self._arena: SubArena | None = None

    def missing(self) -> int | None:
        """The rank of the group that this rank waits for now; None: no rank, so the group is ready."""
        if self._arena is None:
            try:
                return next(self._steps)
            except StopIteration as made:
                self._arena = made.value
        return None

    def group(self, above: Group) -> Group:
        """The group that has been made. above: a group of the same world, which lives as long as the new one."""
        arena, world, span = self._arena, self._world, None
        gid = int.from_bytes(self._key[:8], "little")
        if arena is None:
            raise InternalError(f"{self.call} has not ended")
        if world.span is not None and self._hosts.spans:
            span = Span(self._hosts, self._rank, gid, world.span.carrier, world.span.far)
        group = Group(arena, self._rank, name=self._name, config=world.host.config, parent=above, gid=gid, span=span)
        group.made_of = self._parent
        return group

    def _lend(self) -> Generator[int, None, SubArena]:
        """The part of the first member on a host."""
        try:
            arena = self._lender.lend(self._members, self._rank, self._here)
        except OutOfMemory:
            yield from self._announce(None)
            raise
        if len(self._here) > 1:
            try:
                yield from self._announce(arena)
            except BaseException:
                self._lender.take_back(arena)
                raise
        return arena

    def _announce(self, arena: SubArena | None) -> Generator[int, None, None]:
        while not self._lender.announce(self._key, arena, self._members[self._rank]):
            self.why = " It has made many groups that their other members have not joined yet."
            yield self._rank

    def _borrow(self) -> Generator[int, None, SubArena]:
        """The part of all other members."""
        number = self._here[0]
        first = self._members[number]
        table = self._lender.arena.region_table(first)
        while (start := table.find(self._key)) is None:
            yield number
        if start == NO_ROOM:
            raise OutOfMemory(f"the shared memory of rank {first} has no room for a new group: free tensors there")
        return self._lender.borrow(start, self._members, self._rank, number, self._here)
