"""`unisono doctor PID`: why a job is stuck, from outside. Without a process it looks at the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache, partial
from typing import Annotated

import typer
from rich.columns import Columns
from rich.panel import Panel
from rich.text import Text

from ...base.errors import ArgumentError
from ...observe.live.jobs import attached, meeting_ranks, the_job
from ...observe.live.rank_stacks import Stack, stack_of
from ...observe.live.snapshot import Diagnosis, diagnose, snapshot
from ...observe.traces.last_calls import last_calls_text
from .shared.printing import console

_APART_S = 0.3
_MOST_STACKS, _FRAMES = 6, 8


def doctor(
    pid: Annotated[
        int | None, typer.Argument(help="A process of a job that does not go on; without it, the machine is examined.")
    ] = None,
    *,
    ranks: Annotated[int, typer.Option(min=0, help="Of the machine: how many ranks; 0: one per processor.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Of the machine: as JSON, for scripts.")] = False,
) -> None:
    """Say what is right with this machine and what to change; with a process, why its job does not go on.

    Each thing to change has its reason and its gain. The exit status is 1 if there is a problem: calls would fail, or
    stop each other for long.

    With a process: which ranks miss which call, which rank waits for which, their stacks side by side. For ranks that
    have no group yet: for which rank each waits, at which address, since when. Nothing is changed: the command reads
    shared memory and asks ranks for their stacks. Only the user who runs the job can do this.
    """
    if pid is None:
        from .doctor_machine import doctor_machine

        doctor_machine(ranks, as_json)
        return
    if as_json:
        raise ArgumentError(f"--json is of the machine: unisono top {pid} --once --json is of a job")
    out = console()
    if meeting := sorted(meeting_ranks(pid), key=lambda one: one.waiting.rank):
        for each in meeting:
            out.print(Text(each.line))
        out.print()
        panels = [_panel(each.waiting.rank, each.pid, each.stack) for each in meeting[:_MOST_STACKS]]
        out.print(Columns(panels))
        return
    with attached(the_job(pid)) as arena:
        before = snapshot(arena)
        time.sleep(_APART_S)
        stack = cache(partial(stack_of, arena))
        found = diagnose(before, snapshot(arena), lambda rank: stack(rank).line)
        for line in found.lines:
            out.print(Text(line))
        if found.ranks:
            out.print()
            out.print(
                Columns([_panel(rank, found.after.ranks[rank].pid, stack(rank)) for rank in found.ranks[:_MOST_STACKS]])
            )
        for text in _last_calls(found):
            out.print(Text(f"\n{text}"))


def _last_calls(found: Diagnosis) -> Iterator[str]:
    for group in found.stuck:
        yield last_calls_text([track for track in found.after.tracks if track.start == group], found.after.at_ns)


def _panel(rank: int, pid: int, stack: Stack) -> Panel:
    shown = [frame.strip() for frame in stack.frames[:_FRAMES]]
    return Panel(Text("\n".join(shown)), title=f"rank {rank} (pid {pid})", expand=False)
