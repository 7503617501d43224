"""`unisono doctor` without a process: what is right with this machine and what to change, on one screen."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence

import typer
from rich.table import Table
from rich.text import Text

import unisono

from ....base.cpu import model as processor
from ....base.errors import UnisonoError
from ....base.units import format_bytes, format_seconds, plural
from ....observe.live.jobs import find_jobs
from ...machine import (
    Files,
    Finding,
    Measurements,
    examine,
    fastest,
    look_at_time,
    probe,
    problem,
    shares_between,
    starts,
    time_copies,
    worst_first,
)
from ..shared.compiling import compile_first
from ..shared.paint import console, plain_table
from ..shared.progress_bar import progress
from ..shared.this_machine import date, processors
from .doctor_calls import LONG, SHORT, measure_calls

_COLOURS = {"problem": "bold red", "advice": "yellow", "ok": "green"}
_ROWS = {
    "barrier": ("barrier", 4, "private"),
    "all_reduce of 8 B": ("all_reduce", 8, "private"),
    f"all_reduce of {format_bytes(SHORT)}": ("all_reduce", SHORT, "private"),
    f"all_reduce of {format_bytes(LONG)}": ("all_reduce", LONG, "private"),
    "  through staging areas": ("all_reduce", LONG, "staged"),
    "  made with unisono.empty": ("all_reduce", LONG, "shared"),
}
"""The lines of what was measured: label -> call, bytes, way."""


def doctor_machine(ranks: int, seconds: float, as_json: bool) -> None:
    """Look, measure for about so many seconds, print. Ends with 1 if there is a problem."""
    files, ranks = Files(), ranks or max(2, processors())
    with progress("doctor: looking at the machine"):
        seen = probe(files)
        broken = [one for one in starts(files, seen, ranks) if one.level == "problem"]
    found, failed = Measurements(), list[Finding]()
    if seconds and not broken:
        try:
            found = _measure(files, sorted({2, ranks}), seconds)
        except (UnisonoError, OSError, ImportError) as error:
            says, reason = f"ranks could not start or meet: {error}", "every job on this machine begins like this"
            failed = [problem("start", says, reason=reason, change="follow the message, and what else is said here")]
    findings = worst_first([*failed, *examine(files, seen, ranks, found)])
    if as_json:
        _print_json(findings, found, ranks)
    else:
        _print(findings, found, ranks)
    if any(one.level == "problem" for one in findings):
        raise typer.Exit(1)


def _measure(files: Files, counts: Sequence[int], seconds: float) -> Measurements:
    """counts: numbers of ranks."""
    compile_first()
    before, speeds, reaches = look_at_time(files), [], []
    with progress("doctor: measuring", 1 + len(counts)) as show:
        show(0, "copies of one process")
        copies = time_copies()
        for done, count in enumerate(counts, 1):
            show(done, plural(count, "rank"))
            some, among = measure_calls(count, seconds / len(counts))
            speeds += some
            reaches.append(among)
    return Measurements(copies, speeds, all(reaches), shares_between(before, look_at_time(files), 1))


def _print(findings: Sequence[Finding], found: Measurements, ranks: int) -> None:
    out = console()
    linux = f"{platform.system()} {platform.release()}"
    out.print(f"{processor()} · {linux} · unisono {unisono.__version__} · {date()}\n", soft_wrap=True)
    table = plain_table()
    table.show_header = False
    table.padding = 0, 2, 0, 0
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    fine = [one for one in findings if one.level == "ok"]
    for one in findings:
        if one.level != "ok":
            table.add_row(Text(one.level, _COLOURS[one.level]), one.topic, _text(one))
    if table.row_count:
        out.print(table)
        out.print()
    out.print(Text("ok  ", _COLOURS["ok"]).append_text(Text(" · ", "dim").join(map(_in_short, fine))))
    if found.copies:
        out.print()
        out.print(_speeds(found))
    jobs = find_jobs()
    if jobs:
        out.print(f"\nA job runs here: unisono doctor {jobs[0].holders[0][0]} says what it does.")
    counts = [sum(one.level == level for one in findings) for level in ("problem", "advice")]
    out.print(f"\n{_sum(*counts)} for {plural(ranks, 'rank')} on this machine.")


def _text(one: Finding) -> Text:
    """What was found; below it, why that matters, what it costs, and what to do."""
    text = Text(one.says)
    why = f"{one.reason}; {one.gain}" if one.gain else one.reason
    if why:
        text.append(f"\n{why}", "dim")
    if one.change:
        text.append(f"\n→ {one.change}")
    return text


def _in_short(one: Finding) -> Text:
    return Text.assemble((f"{one.topic}: ", "dim"), one.says, style="default")


def _speeds(found: Measurements) -> Table:
    """What was measured, beside the copies of one process."""
    table, copies = plain_table(), found.copies
    counts = sorted({one.ranks for one in found.speeds})
    for head in ("measured", *(plural(count, "rank") for count in counts)):
        table.add_column(head)
    if copies is None:
        return table
    per_s = f"{format_bytes(copies.nbytes / copies.seconds)}/s"
    table.add_row(f"one process copies {format_bytes(copies.nbytes)}", f"{format_seconds(copies.seconds)} = {per_s}")
    for label, (call, nbytes, way) in _ROWS.items():
        cells = [fastest(found.speeds, call, nbytes, way, count) for count in counts]
        long = nbytes == copies.nbytes
        if any(cells):
            table.add_row(
                label, *("" if cell is None else _cell(cell, copies.seconds if long else 0) for cell in cells)
            )
    return table


def _cell(took_s: float, copy_s: float) -> str:
    return format_seconds(took_s) + (f" = {took_s / copy_s:.1f} copies" if copy_s else "")


def _sum(problems: int, advices: int) -> str:
    if not problems and not advices:
        return "Nothing to change"
    parts = [plural(problems, "problem")] if problems else []
    parts += [f"{advices} {'piece' if advices == 1 else 'pieces'} of advice"] if advices else []
    return " and ".join(parts)


def _print_json(findings: Sequence[Finding], found: Measurements, ranks: int) -> None:
    said = {
        "processor": processor(),
        "unisono": unisono.__version__,
        "date": date(),
        "ranks": ranks,
        "findings": [one._asdict() for one in findings],
        "copies": found.copies and found.copies._asdict(),
        "speeds": [one._asdict() for one in found.speeds],
    }
    typer.echo(json.dumps(said, indent=2))
