"""`unisono bench --hosts`: calls over several hosts beside flat Gloo, on hosts that are parts of this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
import typer
from rich.table import Table

import unisono

from ....base.cpu import model as processor
from ....base.errors import ArgumentError
from ....base.units import format_seconds, plural
from ....schedule import Hosts
from ..shared.beside_gloo import ENGINES
from ..shared.compiling import compile_first
from ..shared.paint import console, plain_table
from ..shared.progress_bar import progress_of_others
from ..shared.this_machine import date, processors
from .host_calls import HostTurns, host_cells, measure_over_hosts
from .how_much_faster import verdict

_LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 600.0


class CellTimes(NamedTuple):
    """A collective on vectors of `nbytes`: by engine, the slowest rank's seconds of each call; elements that differ."""

    name: str
    nbytes: int
    times: dict[str, list[float]]
    wrong: int


def bench_hosts(hosts: Hosts, names: Mapping[int, str], seconds: float, others: str) -> None:
    """Measure and print. names: bytes -> the size in words. seconds: for all. others: see `_beside_others`."""
    if not hosts.spans:
        raise ArgumentError(f"--hosts {hosts.text} is one host: leave it out, or give such as 2x2")
    out = console()
    out.print(
        f"{plural(hosts.ranks, 'rank')} on {plural(len(hosts.members), 'host')} ({hosts.text}), float32 · ", end=""
    )
    out.print(f"{processor()}, {processors()} processors")
    out.print(f"unisono {unisono.__version__}, torch {torch.__version__} · {date()}")
    out.print("These hosts are processes that share no memory, and speak over loopback.\n")
    cells = host_cells([*names])
    compile_first()
    title = f"bench, {plural(hosts.ranks, 'rank')} on {plural(len(hosts.members), 'host')}"
    with progress_of_others(title, [f"{name} of {names[nbytes]}" for name, nbytes in cells]) as steps:
        found = slowest(cells, _measure(hosts, cells, seconds, steps))
    out.print(_table(found, names))
    if others:
        out.print(others)
    calls = [len(times) for cell in found for times in cell.times.values()]
    out.print(f"\nMedians of {min(calls)} to {max(calls)} calls each, of the slowest rank; the engines take turns.")
    if hosts.ranks > processors():
        out.print(f"{hosts.ranks} ranks share {processors()} processors, so calls wait until all are scheduled.")
    if wrong := sum(cell.wrong for cell in found):
        out.print(f"[bold red]The benchmark has failed: {wrong} elements of the results differ from Gloo's.[/]")
        raise typer.Exit(1)
    out.print("Every element of every result was the same as Gloo's.")


def slowest(cells: Sequence[tuple[str, int]], ranks: Sequence[Sequence[HostTurns]]) -> list[CellTimes]:
    """Of each collective and size, the times of the slowest rank in each call."""
    found = []
    for (name, nbytes), turns in zip(cells, zip(*ranks, strict=True), strict=True):
        times = {
            engine: [max(call) for call in zip(*(turn.times[engine] for turn in turns), strict=True)]
            for engine in turns[0].times
        }
        found.append(CellTimes(name, nbytes, times, sum(turn.wrong for turn in turns)))
    return found


def _measure(hosts: Hosts, cells: Sequence[tuple[str, int]], seconds: float, steps: str) -> Any:
    """What each rank has measured. steps: see `step_done`."""
    share_s = seconds / len(cells) / 2
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the ranks: it warns of addresses without names
    addresses = (_LOOPBACK,) * len(hosts.members)
    with unisono.world(hosts=hosts, timeout_s=_TIMEOUT_S) as world:
        return world.run(measure_over_hosts, addresses, cells, share_s, None, steps)


def _table(found: Sequence[CellTimes], names: Mapping[int, str]) -> Table:
    table = plain_table()
    table.add_column("call")
    for column in ("size", *ENGINES):
        table.add_column(column, justify="right")
    table.add_column("unisono is")
    for cell in found:
        ours, flat = (median(cell.times[engine]) for engine in ENGINES)
        times = format_seconds(ours), format_seconds(flat)
        table.add_row(cell.name, names[cell.nbytes], *times, f"[bold]{verdict(ours, flat)}[/]")
    return table
