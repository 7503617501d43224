"""`unisono doctor` without a process: what is right with this machine and what to change, on one screen."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence

import psutil
import typer
from rich.table import Table
from rich.text import Text

import unisono

from ....base.cpu import model as processor
from ....base.errors import UnisonoError
from ....base.units import format_bytes, format_seconds, plural
from ....observe.live.jobs import find_jobs
from ...machine.checks import Seen, look, starts, surroundings
from ...machine.finding import Finding
from ...machine.load import shares
from ..shared.compiling import compile_first
from ..shared.paint import console, plain_table
from ..shared.progress_bar import progress
from ..shared.this_machine import date, processors
from .doctor_calls import LONG, Speed, check_barriers, measure_calls, time_copies

_COLOURS = {"problem": "bold red", "advice": "yellow", "ok": "green"}
"""Worst first."""


def doctor_machine(ranks: int, seconds: float, as_json: bool) -> None:
    """Look, measure for about so many seconds, print. Ends with 1 if there is a problem."""
    ranks = ranks or max(2, processors())
    with progress("doctor: looking at the machine"):
        seen = look()
        findings = starts(seen, ranks)
    copy_s, speeds = 0.0, list[Speed]()
    if seconds and all(one.level != "problem" for one in findings):
        try:
            seen, copy_s, speeds = _measure(seen, sorted({2, ranks}), seconds)
        except (UnisonoError, OSError, ImportError) as error:
            says, reason = f"ranks could not start or meet: {error}", "every job on this machine begins like this"
            findings.insert(0, Finding("problem", "start", says, reason, "follow the message, and what else is said"))
    findings += [*check_barriers(speeds, seen.usable), *surroundings(seen, ranks)]
    findings.sort(key=lambda one: [*_COLOURS].index(one.level))
    if as_json:
        said = {
            "processor": processor(),
            "unisono": unisono.__version__,
            "date": date(),
            "ranks": ranks,
            "findings": [one._asdict() for one in findings],
            "copies": {"nbytes": LONG, "seconds": copy_s, "gain": seen.huge_gain} if copy_s else None,
            "speeds": [one._asdict() for one in speeds],
        }
        typer.echo(json.dumps(said, indent=2))
    else:
        _print(findings, copy_s, speeds, ranks)
    if findings[0].level == "problem":
        raise typer.Exit(1)


def _measure(seen: Seen, counts: Sequence[int], seconds: float) -> tuple[Seen, float, list[Speed]]:
    """What was seen, with what was noticed meanwhile; the seconds of a copy; calls. counts: numbers of ranks."""
    compile_first()
    before, speeds, reaches = psutil.cpu_times(), list[Speed](), []
    with progress("doctor: measuring", 1 + len(counts)) as show:
        show(0, "copies of one process")
        copy_s, gain = time_copies()
        for done, count in enumerate(counts, 1):
            show(done, plural(count, "rank"))
            some, among = measure_calls(count, seconds / len(counts))
            speeds += some
            reaches.append(among)
    _, stolen = shares(before, psutil.cpu_times())
    load = seen.load._replace(stolen=stolen)
    return seen._replace(load=load, may_read=all(reaches), huge_gain=gain), copy_s, speeds


def _print(findings: Sequence[Finding], copy_s: float, speeds: Sequence[Speed], ranks: int) -> None:
    out = console()
    linux = f"{platform.system()} {platform.release()}"
    out.print(f"{processor()} · {linux} · unisono {unisono.__version__} · {date()}\n", soft_wrap=True)
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
    if copy_s:
        out.print()
        out.print(_table(copy_s, speeds))
    jobs = find_jobs()
    if jobs:
        out.print(f"\nA job runs here: unisono doctor {jobs[0].holders[0][0]} says what it does.")
    problems, advice = (sum(one.level == level for one in findings) for level in ("problem", "advice"))
    parts = [plural(problems, "problem")] * (problems > 0) + [f"{plural(advice, 'piece')} of advice"] * (advice > 0)
    out.print(f"\n{' and '.join(parts) or 'Nothing to change'} for {plural(ranks, 'rank')} on this machine.")


def _table(copy_s: float, speeds: Sequence[Speed]) -> Table:
    """What was measured, beside the copies of one process."""
    table, rows = plain_table(), dict[str, list[str]]()
    for head in ("measured", *(plural(count, "rank") for count in sorted({one.ranks for one in speeds}))):
        table.add_column(head)
    size = format_bytes(LONG)
    table.add_row(f"one process copies {size}", f"{format_seconds(copy_s)} = {format_bytes(LONG / copy_s)}/s")
    for one in speeds:
        copies = f" = {one.seconds / copy_s:.1f} copies" if one.nbytes == LONG else ""
        rows.setdefault(_label(one), []).append(format_seconds(one.seconds) + copies)
    for label, cells in rows.items():
        table.add_row(label, *cells)
    return table


def _label(one: Speed) -> str:
    if one.call == "barrier":
        return one.call
    ways = {"staged": "  through staging areas", "shared": "  made with unisono.empty"}
    return ways.get(one.way) or f"{one.call} of {format_bytes(one.nbytes)}"
