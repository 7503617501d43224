"""`unisono trace`: run a command, record all calls of all ranks, and report where time goes."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ...base.errors import ArgumentError
from ...base.python import no_collections
from ...base.units import format_bytes, format_seconds, plural, ranks_text
from ...observe.traces.last_calls import last_words
from ...observe.traces.perfetto import write_trace
from ...observe.traces.recorded import HostClock, aligned, jobs_in, recorded
from ...observe.traces.trace_report import CallKind, TraceReport, report
from .shared.printing import at_work, console, file_errors, plain_table

_MOST_ROWS, _WIDTH = 12, 110


def trace(
    command: Annotated[list[str], typer.Argument(help="-- and a command, or folders with a trace.")],
    output: Annotated[str, typer.Option("-o", "--output", help="The folder for the trace.")] = "unisono-trace",
) -> None:
    """Run a command, such as `torchrun ... train.py`, and record all calls of all ranks that it starts.

    Prints a report of where time goes, and writes one file per job for Perfetto (ui.perfetto.dev): ranks as tracks,
    calls as slices, arrows to the rank that came late. With a folder in place of a command, this is done for the latest
    job there, and for jobs without a file. If hosts do not share a folder, give the folders of all hosts; the file is
    written to the first.
    """
    if all((Path(word) / "calls").is_dir() for word in command):
        folders, status = [*map(Path, command)], 0
        found = [*jobs_in(*folders)]
        jobs = [job for job in found if job == found[-1] or not (folders[0] / f"{job}.json").exists()]
    else:
        folders = [Path(output)]
        if shutil.which(command[0]) is None:
            hint = f"python {' '.join(command)}" if command[0].endswith(".py") else "COMMAND"
            raise ArgumentError(
                f"{command[0]}: neither a command nor a folder with a trace. Run: unisono trace -- {hint}"
            )
        if folders[0].suffix == ".json" and not folders[0].is_dir():
            raise ArgumentError(f"{output}: -o takes a folder, for one file per job. Use -o {output[:-5]}.")
        with file_errors(f"make the folder {output}"):
            folders[0].mkdir(parents=True, exist_ok=True)
        before = jobs_in(*folders)
        environ = {**os.environ, "UNISONO_TRACE": str(folders[0].resolve())}
        status = subprocess.run(command, env=environ, check=False).returncode
        jobs = [job for job, count in jobs_in(*folders).items() if count > before[job]]
    if not jobs and not status:
        raise ArgumentError(f"{command[0]}: no rank recorded a call. Check that the program uses unisono.")
    for job in jobs:
        _show(folders, job)
    if status:
        typer.secho(f"unisono: {command[0]} has ended with status {status}", err=True, fg="red")
        raise typer.Exit(status if status > 0 else 1)


def _show(folders: Sequence[Path], job: str) -> None:
    out = console()
    out.width = max(out.width, _WIDTH)
    with at_work(f"reading the trace of {job}"), no_collections():
        if not (found := recorded(folders, job)):
            raise ArgumentError(f"{', '.join(map(str, folders))}: cannot read any recording of {job}")
        parts, clocks = aligned(found)
        tracks = [track for part in parts for track in part.tracks]
        told = report(tracks)
        path = folders[0] / f"{job}.json"
        with file_errors(f"write {path}"):
            write_trace(path, parts, clocks)
    for table in _tables(told):
        out.print(table)
        out.print()
    if text := last_words(parts):
        out.print(Text(f"{text}\n"))
    if told.lost:
        out.print(f"the first {told.lost} calls are not in it: raise UNISONO_TRACE_CALLS to keep more")
    for clock in clocks:
        out.print(Text(_clock_text(clock)))
    missing = sorted(set(range(parts[0].size)) - {part.rank for part in parts})
    if missing:
        where = "copy the folders of all hosts to one, and call: unisono trace FOLDER FOLDER ..."
        out.print(Text(f"{ranks_text(missing, _MOST_ROWS)} of {parts[0].size} not in it. If on other hosts, {where}"))
    out.print(Text(f"{path}: open it in https://ui.perfetto.dev"))


def _clock_text(clock: HostClock) -> str:
    if clock.error_ns is None:
        return f"host {clock.name}: it has made no call with the first one, so its times are by its calendar"
    return f"host {clock.name}: its times are right to within about {_time(clock.error_ns)}, by the calls made together"


def _tables(found: TraceReport) -> Iterator[Table | Text]:
    yield _table(
        "where time goes",
        ["call", "size", "algorithm", "calls", "median", "total", "waited", "bytes/s"],
        [
            [
                *_call(kind), str(kind.calls), _time(kind.typical_ns), _time(kind.total_ns), _time(kind.waited_ns),
                format_bytes(kind.nbytes * 1e9 / kind.typical_ns) if kind.nbytes and kind.typical_ns else "",
            ]
            for kind in found.kinds
        ],
    )  # fmt: skip
    yield _table(
        "ranks that came last, and how long all others together have waited for each",
        ["rank", "calls", "waited", "mostly at"],
        [[str(late.rank), str(late.calls), _time(late.waited_ns), _short(late.line)] for late in found.late],
    )
    yield _table(
        "time in calls",
        ["rank", "from first to last call", "in calls", "share", "of which in the background"],
        [
            [
                str(time.rank), _time(time.total_ns), _time(time.inside_ns),
                f"{time.inside_ns / max(1, time.total_ns):.0%}", f"{time.background_ns / max(1, time.inside_ns):.0%}",
            ]
            for time in found.times
        ],
    )  # fmt: skip


def _call(kind: CallKind) -> tuple[str, str, str]:
    """Call, size and algorithm."""
    group = f" ({kind.group})" if kind.group != "world" else ""
    return f"{kind.collective}{group}", format_bytes(kind.nbytes), kind.algorithm.partition(".")[2] or kind.algorithm


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = plain_table()
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for k, name in enumerate(names):
        table.add_column(name, justify="left" if k == 0 or name in ("algorithm", "line", "mostly at") else "right")
    for row in rows[:_MOST_ROWS]:
        table.add_row(*map(Text, row))
    if len(rows) > _MOST_ROWS:
        table.caption, table.caption_justify = f"and {plural(len(rows) - _MOST_ROWS, 'more row')}", "left"
    return table


def _time(ns: int) -> str:
    return format_seconds(ns / 1e9)


def _short(line: str) -> str:
    """A file:line; if the file is not below this folder, by its name alone."""
    here = f"{Path.cwd()}{os.sep}"
    return line.removeprefix(here) if line.startswith(here) else os.path.basename(line)
