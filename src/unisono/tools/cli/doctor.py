"""`unisono doctor`: why a job is stuck, seen from outside."""

import time
from functools import cache, partial
from typing import Annotated

import typer
from rich.columns import Columns
from rich.panel import Panel
from rich.text import Text

from ...observe.live.jobs import Stack, attached, meeting_ranks, stack_of, the_job
from ...observe.live.snapshot import diagnose, snapshot
from ...observe.traces.last_calls import last_calls_text
from .shared.printing import console

_APART_S = 0.3
_MOST_STACKS, _FRAMES = 6, 8


def doctor(
    pid: Annotated[
        int | None, typer.Argument(help="A process of the job. Default: the only job of this user.", show_default=False)
    ] = None,
) -> None:
    """Explain why a job is stuck.

    Shows which ranks have not made which call, which rank waits for which, and their stacks side by side. If PID is of
    a job whose ranks have no group yet: for which rank each waits, at which address, since when. The command only reads
    shared memory and requests stacks. Only the user who runs the job can do this.
    """
    out = console()
    if pid is not None and (meeting := sorted(meeting_ranks(pid), key=lambda one: one.waiting.rank)):
        for each in meeting:
            out.print(Text(each.line))
        out.print()
        out.print(Columns([_panel(each.waiting.rank, each.pid, each.stack) for each in meeting[:_MOST_STACKS]]))
        return
    with attached(the_job(pid)) as arena:
        before = snapshot(arena)
        time.sleep(_APART_S)
        stack = cache(partial(stack_of, arena))
        found = diagnose(before, after := snapshot(arena), lambda rank: stack(rank).line)
        for line in found.lines:
            out.print(Text(line))
        if found.ranks:
            out.print()
            out.print(Columns([_panel(k, after.ranks[k].pid, stack(k)) for k in found.ranks[:_MOST_STACKS]]))
        for group in found.stuck:
            mine = [track for track in after.tracks if track.start == group]
            out.print(Text(f"\n{last_calls_text(mine, after.at_ns)}"))


def _panel(rank: int, pid: int, stack: Stack) -> Panel:
    shown = [frame.strip() for frame in stack.frames[:_FRAMES]]
    return Panel(Text("\n".join(shown)), title=f"rank {rank} (pid {pid})", expand=False)
