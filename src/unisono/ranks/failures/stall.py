"""A call that does not end: other ranks can read of it. After `stall_warning_s`, one rank says which ranks are missing.

Many ranks may wait, in several groups, because of one rank, or one circle of ranks. Of these, the lowest one on each
host warns, once per call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from textwrap import indent

from ...base.errors import WaitTimeout
from ...base.python import tell
from ...base.records import Sighting, Wait
from ...base.units import ranks_text
from ...engine.memory.arena import Arena
from ...engine.process.alive import start_ticks
from ...observe.live.ask_stacks import Answer, ProcessStatus, ask_for_stacks, process_status
from ...observe.live.jobs import shown
from ...observe.live.snapshot import WaitChain, wait_chain
from ..group.group import Group

_MOST = 8  # the most ranks that are looked at
_FRESH_S = 1.0  # how long to wait for answers of ranks on other hosts


def sight(group: Group, ranks: Sequence[int]) -> tuple[Sighting, ...]:
    """What these ranks of the group do now, or the first of them. Only the very first is asked for its stack."""
    return tuple(_see(group, rank, with_stack=rank == ranks[0]) for rank in ranks[:_MOST])


def waits_of(group: Group, *, here: bool = False) -> dict[int, Wait]:
    """The calls, of any group of this world, in which ranks wait; by rank of the world. here: on this host only."""
    world = group.world
    arena = _arena(world)
    if arena is None:
        return {}
    if world.span is not None and (here or not world.span.refresh(time.monotonic() + _FRESH_S)):
        return {rank: wait for rank in world.span.here if (wait := arena.board(rank).wait)}
    return {rank: wait for rank in range(world.size) if (wait := arena.board(rank).wait)}


def _arena(world: Group) -> Arena | None:
    """The arena of a world, unless it has been closed meanwhile."""
    arena = world.engine.arena
    return arena if isinstance(arena, Arena) and arena.map is not None else None


def _see(group: Group, rank: int, *, with_stack: bool) -> Sighting:
    board, last_call = group.engine.arena.board(rank), group.engine.entered(rank)
    pid, ticks = board.pid, board.ticks
    arena = _arena(group.world)
    page = None if arena is None else arena.board(group.world_ranks[rank])
    wait = None if page is None else page.wait
    if group.span is not None and rank not in group.span.here:
        status, answer = ProcessStatus(), Answer(silent="it is on another host")
        if with_stack:
            status, answer = group.span.far.look_at(group.world_ranks[rank])
    elif not pid or page is None or start_ticks(pid) != ticks:
        return Sighting(rank, pid, last_call)
    else:
        status, answer = process_status(pid), ask_for_stacks(pid, ticks, page.stacks) if with_stack else Answer()
    return Sighting(rank, pid, last_call, status.state, status.tracer, wait, *shown(answer.threads), answer.silent)


AWAITED: list[None] = []
"""An entry for each thread that waits for a call in the background. Without one, no thread waits for such calls."""

_MOST_NAMED = 4

_writing = threading.Lock()
"""Held by the thread that writes on this rank's board for which ranks it waits. Others write theirs later."""


class Stall:
    """One call in which this rank waits. End it with `end`.

    call: the call in words, with the user's line.
    any_of: one of the missing ranks is enough.
    background: no thread waits for the call, unless AWAITED says so.
    """

    def __init__(self, group: Group, call: str, *, any_of: bool = False, background: bool = False) -> None:
        self._group, self.call, self._any_of, self._background = group, call, any_of, background
        self._world = group.world
        self._wait: Wait | None = None  # as it is on this rank's board
        self._limit_s = group.engine.config.stall_warning_s
        self._warns = self._limit_s > 0

    def look(self, missing: Sequence[int], waited_s: float, last: str = "") -> None:
        """Tell the other ranks for which ranks of the group this one waits. Warn in time, unless a lower rank does.

        missing: empty if only this rank itself can end its wait, by a message to itself.
        last: the last calls of these ranks, for the warning.
        """
        present = not self._background or bool(AWAITED)
        self._publish(missing if present else ())
        if not present or not self._warns or waited_s < self._limit_s:
            return
        waits = waits_of(self._group, here=True)
        way = wait_chain(waits, self._world.rank)
        if not any(rank < way[0] and wait_chain(waits, rank).end == way.end for rank in waits):
            self._warns = False
            tell(self._warning(missing, waited_s, way, waits, last))

    def late(self, missing: Sequence[int], waited_s: float, details: str = "") -> WaitTimeout:
        """The error of a call that has run out of time."""
        waits = waits_of(self._group)
        way = wait_chain(waits, self._world.rank)
        group = self._group
        same_call = len(way) > 2 and all(waits[rank].call == self.call for rank in way[1:-1])
        if way.is_circle or (len(way) > 3 and not same_call):
            details += f" In the world, {way.text(waits)}."
        if same_call and len(missing) == 1 and way[-1] in group.world_ranks:
            missing = (group.world_ranks.index(way[-1]),)
        return WaitTimeout(self.call, waited_s, missing, group.rank, details, group.named, sight(group, missing))

    def end(self) -> None:
        """The call has ended, or failed."""
        self._publish(())

    def _publish(self, missing: Sequence[int]) -> None:
        """Write on this rank's board for which ranks of the group it waits; no ranks: the wait has ended."""
        group, arena, before = self._group, _arena(self._world), self._wait
        if self._background:
            group.missing_in_background = tuple(missing)
        ranks = tuple(group.world_ranks[rank] for rank in missing)
        self._wait = Wait(group.name, self.call, ranks, self._any_of) if missing else None
        if arena is None or before is self._wait is None or not _writing.acquire(blocking=False):
            return
        try:
            board = arena.board(self._world.rank)
            if self._wait is not None or board.wait == before:  # else another thread waits
                board.set_wait(self._wait)
        finally:
            _writing.release()

    def _warning(
        self, missing: Sequence[int], waited_s: float, way: WaitChain, waits: dict[int, Wait], last: str
    ) -> str:
        """The line of the warning, and below it the stack of the rank that causes the wait."""
        line = f"unisono: rank {self._world.rank} has waited {waited_s:.3g} s in {self.call} for"
        if not missing:
            return f"{line} a message from itself: no other rank can send it\n"
        ranks = [self._group.world_ranks[rank] for rank in missing]
        subject = ranks[0] if len(way) == 1 else way[1] if way.is_circle else way[-1]
        seen = sight(self._world, [subject])[0]
        chain = f"{way.text(waits)}; " if len(way) > 2 else ""
        far = last and f" (last call: {last})"
        line += f" {ranks_text(ranks, _MOST_NAMED)}{far}: {chain}rank {subject} (pid {seen.pid}) {seen}"
        stack = seen.stack or f"  (no stack: {seen.silent})"
        return f"{line}\n{indent(stack, '  ')}\n"
