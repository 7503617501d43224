"""What other ranks do, seen from outside: their processes, the calls in which they wait, their Python stacks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...base.records import Sighting, Wait
from ...engine.memory.arena import Arena
from ...engine.process.alive import process_status, start_ticks
from ...engine.process.stacks import Answer, ask_for_stacks
from ...observe.live.rank_stacks import shown
from ..group.group import Group

_MOST = 8
"""How many ranks are looked at."""
_FRESH_S = 1.0
"""How long to wait for what ranks on other hosts say."""


def sight(group: Group, ranks: Sequence[int]) -> tuple[Sighting, ...]:
    """What these ranks of the group do now, or the first of them; the very first is asked for its stack."""
    return tuple(_see(group, rank, with_stack=rank == ranks[0]) for rank in ranks[:_MOST])


def waits_of(group: Group, *, here: bool = False) -> dict[int, Wait]:
    """The calls, of any group of this world, in which ranks wait; by rank of the world. here: on this host only."""
    world = group.world
    arena = _arena(world)
    if arena is None:
        return {}
    if world.span is not None and (here or not world.span.refresh(time.monotonic() + _FRESH_S)):
        return {rank: wait for rank in world.span.here if (wait := arena.wait_status(rank).wait)}
    return {rank: wait for rank in range(world.size) if (wait := _wait(world, arena, rank))}


def _wait(world: Group, arena: Arena, rank: int) -> Wait | None:
    """The call in which a rank of the world waits."""
    here = world.span is None or rank in world.span.here
    return arena.wait_status(rank).wait if here else arena.board(rank).wait


def _arena(world: Group) -> Arena | None:
    """The arena of a world, unless it has been closed meanwhile."""
    arena = world.host.arena
    return arena if isinstance(arena, Arena) and arena.map is not None else None


def _see(group: Group, rank: int, *, with_stack: bool) -> Sighting:
    board, last_call = group.host.arena.board(rank), group.host.entered(rank)
    pid, ticks = board.pid, board.ticks
    arena = _arena(group.world)
    if group.span is not None and rank not in group.span.here:
        wait = None if arena is None else _wait(group.world, arena, group.world_ranks[rank])
        return Sighting(rank, pid, last_call, wait=wait, silent="it is on another host")
    if not pid or arena is None or start_ticks(pid) != ticks:
        return Sighting(rank, pid, last_call)
    status, page = process_status(pid), arena.wait_status(group.world_ranks[rank])
    wait, answer = page.wait, Answer()
    if with_stack:
        answer = ask_for_stacks(pid, ticks, page.stacks)
    return Sighting(rank, pid, last_call, status.state, status.tracer, wait, *shown(answer.threads), answer.silent)
