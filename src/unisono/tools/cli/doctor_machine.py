"""`unisono doctor` without a process: what is right with this machine and what to change, on one screen."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence

import typer
from rich.text import Text

import unisono

from ...base.linux import model as processor
from ...base.units import plural
from ...observe.live.jobs import find_jobs
from ..machine.checks import look, starts, surroundings
from ..machine.finding import Finding
from ..machine.huge_pages import huge_gain
from .shared.printing import console, date, plain_table, processors, progress

_COLOURS = {"problem": "bold red", "advice": "yellow", "ok": "green"}
"""Worst first."""


def doctor_machine(ranks: int, as_json: bool) -> None:
    """Look and print. Ends with 1 if there is a problem."""
    ranks = ranks or max(2, processors())
    with progress("doctor: looking at the machine"):
        seen = look()
        findings = starts(seen, ranks)
        if all(one.level != "problem" for one in findings):
            seen = seen._replace(huge_gain=huge_gain())
    findings += surroundings(seen, ranks)
    findings.sort(key=lambda one: [*_COLOURS].index(one.level))
    if as_json:
        said = {
            "processor": processor(),
            "unisono": unisono.__version__,
            "date": date(),
            "ranks": ranks,
            "findings": [one._asdict() for one in findings],
        }
        typer.echo(json.dumps(said, indent=2))
    else:
        _print(findings, ranks)
    if findings[0].level == "problem":
        raise typer.Exit(1)


def _print(findings: Sequence[Finding], ranks: int) -> None:
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
    jobs = find_jobs()
    if jobs:
        out.print(f"\nA job runs here: unisono doctor {jobs[0].holders[0][0]} says what it does.")
    problems, advice = (sum(one.level == level for one in findings) for level in ("problem", "advice"))
    parts = [plural(problems, "problem")] * (problems > 0) + [f"{plural(advice, 'piece')} of advice"] * (advice > 0)
    out.print(f"\n{' and '.join(parts) or 'Nothing to change'} for {plural(ranks, 'rank')} on this machine.")
