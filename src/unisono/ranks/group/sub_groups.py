"""Make a sub-group in the memory of the world. Only its members take part, and no store, which may have gone.

On the other ranks a `NonMember` stands for the group, see `current`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...base.errors import PeerGone, WaitTimeout
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
    lender, world, members = parent.engine.lender, parent.world, tuple(world_ranks)
    call, began, pause_s = f"making the process group {name!r}", time.monotonic(), _ASK_S
    lender.collect()
    sought = lender.key(name, members, parent.gid), members, rank, world.hosts.restrict(members).beside(rank)
    found = lender.memory(*sought)
    while isinstance(found, int):  # the rank that this one waits for now
        check_abort(parent, lambda: call)
        departure = None if found == rank else world.liveness.left(members[found])
        awaited, found = found, lender.memory(*sought)  # it may have said where, and gone
        if departure and found == awaited:
            raise PeerGone(awaited, world.engine.arena.board(members[awaited]).pid, departure, rank, call, members)
        waited_s = time.monotonic() - began
        if waited_s > timeout_s and isinstance(found, int):
            missing = () if found == rank else (found,)
            why = "" if missing else " This rank has made many groups that other members have not joined yet."
            raise WaitTimeout(call, waited_s, missing, rank, why, members)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _ASK_SELDOM_S)
    group = group_in(found, sought[0], name, parent)
    group.timeout_s = timeout_s
    return group


def group_in(memory: SubArena, key: bytes, name: str, above: Group) -> Group:
    """The group in this memory. above: a group of the same world."""
    world, gid, span = above.world, int.from_bytes(key[:8], "little"), None
    hosts = world.hosts.restrict(memory.members)
    if world.span is not None and hosts.spans:
        span = Span(hosts, memory.rank, gid, world.span.carrier, world.span.far)
    return Group(memory, memory.rank, name=name, config=world.engine.config, parent=above, gid=gid, span=span)
