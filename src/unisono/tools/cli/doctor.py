"""`unisono doctor PID`: why a job is stuck, from outside. Without a process: what is right with this machine."""

import json
import platform
import time
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.columns import Columns
from rich.panel import Panel
from rich.text import Text

from ... import __version__
from ...base.errors import ArgumentError
from ...base.linux import model as processor
from ...base.units import plural
from ...observe.live.jobs import Stack, attached, find_jobs, meeting_ranks, stack_of, the_job
from ...observe.live.snapshot import diagnose, snapshot
from ...observe.traces.last_calls import last_calls_text
from .shared.printing import console, date, plain_table, processors, progress

if TYPE_CHECKING:
    from ..machine.checks import Finding

_APART_S = 0.3
_MOST_STACKS, _FRAMES = 6, 8
_COLOURS = {"problem": "bold red", "advice": "yellow", "ok": "green"}  # of findings; worst first


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
        _doctor_machine(ranks, as_json)
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
        for group in found.stuck:
            mine = [track for track in found.after.tracks if track.start == group]
            out.print(Text(f"\n{last_calls_text(mine, found.after.at_ns)}"))


def _panel(rank: int, pid: int, stack: Stack) -> Panel:
    shown = [frame.strip() for frame in stack.frames[:_FRAMES]]
    return Panel(Text("\n".join(shown)), title=f"rank {rank} (pid {pid})", expand=False)


def _doctor_machine(ranks: int, as_json: bool) -> None:
    """Look and print. Ends with 1 if there is a problem."""
    from ..machine.checks import look, starts, surroundings

    ranks = ranks or max(2, processors())
    with progress("doctor: looking at the machine"):
        seen = look()
    findings = [*starts(seen, ranks), *surroundings(seen, ranks)]
    findings.sort(key=lambda one: [*_COLOURS].index(one.level))
    if as_json:
        said = {
            "processor": processor(),
            "unisono": __version__,
            "date": date(),
            "ranks": ranks,
            "findings": [one._asdict() for one in findings],
        }
        typer.echo(json.dumps(said, indent=2))
    else:
        _print_findings(findings, ranks)
    if findings[0].level == "problem":
        raise typer.Exit(1)


def _print_findings(findings: "Sequence[Finding]", ranks: int) -> None:
    out = console()
    linux = f"{platform.system()} {platform.release()}"
    out.print(f"{processor()} · {linux} · unisono {__version__} · {date()}\n", soft_wrap=True)
    table = plain_table()
    table.show_header = False
    table.padding = 0, 2, 0, 0
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    fine = [Text.assemble((f"{one.topic}: ", "dim"), one.says) for one in findings if one.level == "ok"]
    for one in findings:
        if one.level != "ok":
            text = Text.assemble(one.says, (f"\n{one.reason}", "dim"), f"\n→ {one.change}")
            table.add_row(Text(one.level, _COLOURS[one.level]), one.topic, text)
    if table.row_count:
        out.print(table)
        out.print()
    out.print(Text("ok  ", _COLOURS["ok"]).append_text(Text(" · ", "dim").join(fine)))
    jobs = find_jobs()
    if jobs:
        out.print(f"\nA job runs here: unisono doctor {jobs[0][0][0]} says what it does.")
    problems, advice = (sum(one.level == level for one in findings) for level in ("problem", "advice"))
    parts = [plural(problems, "problem")] * (problems > 0) + [f"{plural(advice, 'piece')} of advice"] * (advice > 0)
    out.print(f"\n{' and '.join(parts) or 'Nothing to change'} for {plural(ranks, 'rank')} on this machine.")
