"""Make a sub-group of torch.distributed in the memory of the world. No store takes part, so it may have gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ..engine.region_table import NO_ROOM
from ..engine.sub_arena import SubArena
from ..errors import OutOfMemory, PeerGone, WaitTimeout
from ..membership import Group
from ..watch import check_abort

__all__ = ["make_sub_group"]

_ASK_S, _ASK_SELDOM_S = 0.0002, 0.005


def make_sub_group(world: Group, rank: int, world_ranks: Sequence[int], name: str, timeout_s: float) -> Group:
    """The group of these ranks of the world, of which this is number `rank`; all of them call this, and nobody else.

    The first lends the memory, and says where in its region table, which only ranks of the world can write. Raises
    OutOfMemory on all members, PeerGone if the first has gone, WaitTimeout.
    """
    lender, members = world.host.lender, tuple(world_ranks)
    lender.collect()
    making = _Making(world, rank, members, name, timeout_s)
    arena = making.lend() if rank == 0 else making.borrow()
    group = Group(arena, rank, name=name, config=world.host.config, parent=world)
    group.timeout_s = timeout_s
    return group


class _Making:
    def __init__(self, world: Group, rank: int, members: tuple[int, ...], name: str, timeout_s: float) -> None:
        self._world, self._lender, self._rank, self._members = world, world.host.lender, rank, members
        self._timeout_s, self._call = timeout_s, f"making the process group {name!r}"
        self._key = self._lender.key(name, members)

    def lend(self) -> SubArena:
        """The first member's part."""
        try:
            arena = self._lender.lend(self._members)
        except OutOfMemory:
            self._announce(None)
            raise
        if len(self._members) > 1:
            try:
                self._announce(arena)
            except BaseException:
                self._lender.take_back(arena)
                raise
        return arena

    def _announce(self, arena: SubArena | None) -> None:
        why = " It has made many groups that their other members have not joined yet."
        self._until(lambda: self._lender.announce(self._key, arena, self._members[0]) or None, why, ())

    def borrow(self) -> SubArena:
        """Everybody else's part."""
        first, board = self._members[0], self._lender.arena.board(self._members[0])
        table = self._lender.arena.region_table(first)

        def said() -> int | None:
            departure = self._world.presence.gone(first)  # before the table: it may have written there and gone
            start = table.find(self._key)
            if start is None and departure:
                raise PeerGone(0, board.pid, departure, self._rank, self._call, self._members)
            return start

        start = self._until(said, "", (0,))
        if start == NO_ROOM:
            raise OutOfMemory(f"the shared memory of rank {first} has no room for a new group: free tensors there")
        return self._lender.borrow(start, self._members, self._rank)

    def _until(self, ask: Callable[[], int | None], why: str, missing: tuple[int, ...]) -> int:
        """Ask until there is an answer. Raises WaitTimeout."""
        began, pause_s = time.monotonic(), _ASK_S
        while True:
            check_abort(self._world, lambda: self._call)
            if (answer := ask()) is not None:
                return answer
            waited_s = time.monotonic() - began
            if waited_s > self._timeout_s:
                raise WaitTimeout(self._call, waited_s, missing, self._rank, why, self._members)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _ASK_SELDOM_S)
