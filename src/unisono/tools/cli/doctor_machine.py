"""`unisono doctor` without a process: what is right with this machine and what to change, on one screen."""

from __future__ import annotations

import json
import mmap
import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import psutil
import typer
from rich.table import Table
from rich.text import Text

import unisono

from ...base.config import Config
from ...base.errors import UnisonoError
from ...base.linux import model as processor
from ...base.units import format_bytes, format_seconds, plural
from ...observe.live.jobs import find_jobs
from ..machine.checks import Seen, look, starts, surroundings
from ..machine.finding import Finding, judge
from ..machine.load import shares
from .shared.printing import compile_first, console, date, plain_table, processors, progress
from .shared.timed_calls import Trial, measure, quietest

LONG, SHORT = 16 << 20, 64 << 10
"""Bytes of the tensors in the calls; a copy has LONG bytes."""

_TURNS = 3
_COPIES = 16
_HUGE, _COLLAPSE = 2 << 20, 25  # bytes of a huge page; MADV_COLLAPSE of linux/mman.h
_SLOW_BARRIER_S = 50e-6


class Speed(NamedTuple):
    """Seconds of a call on this number of ranks, on tensors of `nbytes`.

    way: private, staged (private, but copied through staging areas) or shared (in shared memory).
    """

    call: str
    nbytes: int
    way: str
    ranks: int
    seconds: float


def time_copies() -> tuple[float, float]:
    """The seconds that one process takes to copy LONG bytes in shared memory, at best; the share that huge pages save.

    Three turns of four save at least this share. So other programs that disturb some turns do not raise it.
    """
    with open(os.memfd_create("unisono probe"), "wb") as file:
        file.truncate(4 * LONG + _HUGE)
        begin = np.frombuffer(mmap.mmap(file.fileno(), 2 * LONG), np.uint8).ctypes.data % _HUGE
        # The kernel puts each map at the same distance from the border of a huge page, so place by offset.
        huge, plain = (mmap.mmap(file.fileno(), 2 * LONG, offset=begin + at) for at in (0, 2 * LONG))
        with suppress(OSError):  # before Linux 6.1
            huge.madvise(_COLLAPSE)
        times = [(_copy_s(plain), _copy_s(huge)) for _ in range(1 + _COPIES)][1:]
    ratios = sorted(fast / slow for slow, fast in times)
    return min(slow for slow, _ in times), max(0.0, 1 - ratios[3 * _COPIES // 4])


def _copy_s(memory: mmap.mmap) -> float:
    halves = np.frombuffer(memory, np.uint8).reshape(2, -1)
    begin = time.perf_counter()
    halves[1] = halves[0]
    return time.perf_counter() - begin


def measure_calls(ranks: int, seconds: float) -> tuple[list[Speed], bool]:
    """The speed of calls of this number of ranks, in about `seconds`; and may they read each other's memory?"""
    never, usual = {"cross_memory_bytes": 0}, {"cross_memory_bytes": Config.from_env().cross_memory_bytes}
    wanted = [
        ("barrier", 4, "private"),
        ("all_reduce", 8, "private"),
        ("all_reduce", SHORT, "private"),
        ("all_reduce", LONG, "private"),
        ("all_reduce", LONG, "staged"),
        ("all_reduce", LONG, "shared"),
    ]
    with unisono.world(ranks, timeout_s=120) as world:
        reaches = all(world.run(_reaches))
        wanted = [one for one in wanted if (reaches and usual != never) or one[2] != "staged"]
        trials = [
            Trial(call, nbytes, way == "shared", never if way == "staged" else usual) for call, nbytes, way in wanted
        ]
        best = quietest(world.run(measure, trials, _TURNS, seconds))
    return [Speed(*one, ranks, took_s) for one, took_s in zip(wanted, best, strict=True)], reaches


def check_barriers(speeds: Sequence[Speed], usable: int) -> list[Finding]:
    """Do ranks that each have a processor meet without delay? usable: processors. No finding without measurements."""
    barriers = [one for one in speeds if one.call == "barrier"]
    finding = judge(
        "barrier",
        ", ".join(f"{format_seconds(one.seconds)} on {plural(one.ranks, 'rank')}" for one in barriers),
        all(one.seconds < _SLOW_BARRIER_S for one in barriers if one.ranks <= usable),
        "ranks with a processor each meet within microseconds: here some did not run when others waited",
        "see load, quota and virtual; then measure again",
    )
    return [finding] if barriers else []


def _reaches() -> bool:
    """May this rank read the memory of all others? All ranks call it together."""
    group = unisono.init()
    unisono.barrier()
    mine = group.host.crosses_memory
    unisono.barrier()
    return mine


_COLOURS = {"problem": "bold red", "advice": "yellow", "ok": "green"}
"""Worst first."""


def doctor_machine(ranks: int, seconds: float, as_json: bool) -> None:
    """Look, measure for about `seconds`, print. Ends with 1 if there is a problem."""
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
    """What was seen, now with results of the measurements; seconds of a copy; calls. counts: numbers of ranks."""
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
