"""Make a sub-group in the memory of the world. Only its members take part, and no store, which may have gone.

On the other ranks a `NonMember` stands for the group, see `current`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...base.errors import InternalError, PeerGone, WaitTimeout
from ...engine.memory.sub_arena import SubArena
from ...hosts.span import Span
from .abort import check_abort
from .group import Group

_ASK_S, _ASK_SELDOM_S = 0.0002, 0.005


def make_sub_group(parent: Group, rank: int, world_ranks: Sequence[int], name: str, timeout_s: float) -> Group:
    """The group of these ranks of the world, of which this is number `rank`. Exactly these ranks call this.

    On each host, a member lends the memory, and says where in its region table, which only ranks of the world can
    write. Raises OutOfMemory on all members of a host, PeerGone if the member that is to lend has gone, WaitTimeout.

    parent: the group that it is made of. Its abort ends the new group, too.
    """
    making = Making(parent, rank, world_ranks, name)
    began, pause_s, world = time.monotonic(), _ASK_S, parent.world
    while (awaited := making.missing()) is not None:
        check_abort(parent, lambda: making.call)
        departure = None if awaited == rank else world.liveness.left(world_ranks[awaited])
        if departure and making.missing() is not None:  # it may have said where, and gone
            pid = world.engine.arena.board(world_ranks[awaited]).pid
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
        self._parent, self._rank, self._members = parent, rank, tuple(world_ranks)
        self._name, self.call, self.why = name, f"making the process group {name!r}", ""
        self._lender = parent.engine.lender
        self._lender.collect()
        self._here = parent.world.hosts.restrict(self._members).beside(rank)
        self._key = self._lender.key(name, self._members, parent.gid)
        self._memory: SubArena | None = None

    def missing(self) -> int | None:
        """The rank of the group that this rank waits for now; None: no rank, so the group is ready."""
        if self._memory is None:
            found = self._lender.memory(self._key, self._members, self._rank, self._here)
            if isinstance(found, int):
                full = " It has made many groups that their other members have not joined yet."
                self.why = full if found == self._rank else ""
                return found
            self._memory = found
        return None

    def group(self, above: Group) -> Group:
        """The group that has been made. above: a group of the same world, which lives as long as the new one."""
        if self._memory is None:
            raise InternalError(f"{self.call} has not ended")
        group = group_in(self._memory, self._key, self._name, above)
        group.made_of = self._parent
        return group


def group_in(memory: SubArena, key: bytes, name: str, above: Group) -> Group:
    """The group in this memory. above: a group of the same world."""
    world, gid, span = above.world, int.from_bytes(key[:8], "little"), None
    hosts = world.hosts.restrict(memory.members)
    if world.span is not None and hosts.spans:
        span = Span(hosts, memory.rank, gid, world.span.carrier, world.span.far)
    return Group(memory, memory.rank, name=name, config=world.engine.config, parent=above, gid=gid, span=span)
