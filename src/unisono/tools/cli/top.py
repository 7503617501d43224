"""`unisono top`: what the ranks of a running job do, seen from outside."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ...base.python import at_terminal
from ...base.units import format_bytes, format_seconds, ranks_text
from ...engine.memory.arena import Arena
from ...observe.live.jobs import attached, the_job
from ...observe.live.snapshot import Snapshot, headlines, rates, snapshot
from .shared.printing import console, plain_table

_PATIENCE_NS = 200_000_000
"""How long ranks may wait before `top` shows for which rank. All calls wait a little."""
_FIRST_S, _EVERY_S = 0.25, 1.0


def top(
    pid: Annotated[int | None, typer.Argument(help="A process of the job. Default: the only job of this user.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and exit.")] = False,
) -> None:
    """Show what the ranks of a running job do: which compute, which wait in which call for which ranks, and how fast.

    The command reads shared memory and does not slow the job. Only the user who runs the job can do this. On a terminal
    it updates every second, until Ctrl-C; `unisono doctor` shows Python stacks.
    """
    with attached(the_job(pid)) as arena:
        looks = _looks(arena)
        if once or not (at_terminal(sys.stdin) and at_terminal(sys.stdout)):
            console().print(_picture(*next(looks)))
        else:
            _watch(looks)


def _looks(arena: Arena) -> Iterator[tuple[Snapshot, Snapshot]]:
    """Each look, with the one before it, until all ranks have ended."""
    before = snapshot(arena, _PATIENCE_NS)
    time.sleep(_FIRST_S)
    after = snapshot(arena, _PATIENCE_NS)
    yield before, after
    while not all(rank.gone for rank in after.ranks):
        time.sleep(_EVERY_S)
        before, after = after, snapshot(arena, _PATIENCE_NS)
        yield before, after


def _watch(looks: Iterator[tuple[Snapshot, Snapshot]]) -> None:
    """Show each look until Ctrl-C, or the end of all ranks. Then the last picture stays."""
    with suppress(KeyboardInterrupt):
        with Live(screen=True) as live:
            for look in looks:
                picture = _picture(*look)
                live.update(picture, refresh=True)
        live.console.print(picture)
        live.console.print("all ranks have ended")


def _picture(before: Snapshot, after: Snapshot) -> RenderableType:
    lines: list[RenderableType] = []
    for culprit in after.culprits:
        lines += [Text(line, "bold red") for line in headlines(culprit, after)]
    if lines:
        lines.append(
            Text(f"  unisono doctor {next(seen.pid for seen in after.ranks if seen.pid)} says more, with their stacks")
        )
    table = plain_table()
    for name in ("rank", "pid", "does", "for", "calls/s", "bytes/s", "in calls"):
        table.add_column(name, justify="left" if name == "does" else "right")
    blamed = {rank for culprit in after.culprits for rank in culprit.ranks}
    for seen, rate in zip(after.ranks, rates(before, after), strict=True):
        table.add_row(
            str(seen.rank), str(seen.pid), Text(_does(after, seen.rank)),
            format_seconds(max(0, after.at_ns - seen.since_ns) // 1000 / 1e6) if seen.since_ns else "",
            f"{rate.calls_per_s:.3g}", format_bytes(rate.bytes_per_s), f"{rate.share:.0%}",
            style="red" if seen.rank in blamed else "",
        )  # fmt: skip
    return Group(*lines, table)


def _does(after: Snapshot, rank: int) -> str:
    seen, wait = after.ranks[rank], after.waits.get(rank)
    if wait is None:
        return seen.does
    for_whom = ranks_text(wait.missing, 4)
    where = f"call {seen.inside.place}" if seen.inside else wait.call
    return f"waits for {for_whom} in {where}"
