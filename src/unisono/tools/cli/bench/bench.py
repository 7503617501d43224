"""`unisono bench`: how much faster than Gloo this machine runs all_reduce with unisono."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated

import torch
import typer
from rich.table import Table

import unisono

from ....base.cpu import model as processor
from ....base.errors import ArgumentError
from ....base.units import format_bytes, format_seconds, parse_bytes
from ...machine.load import check_load, look_at_load
from ..shared.beside_gloo import ENGINES
from ..shared.compiling import compile_first
from ..shared.costs_over_hosts import known_hosts
from ..shared.paint import console, plain_table
from ..shared.progress_bar import progress
from ..shared.this_machine import date, processors
from .bench_calls import Turn, measure
from .bench_hosts import bench_hosts
from .how_much_faster import verdict

_TURNS = 5
"""How many turns each engine has with each size."""

_Turns = dict[tuple[int, str], list[Sequence[Turn]]]
"""Bytes and engine -> for each turn, what each rank measured."""


def bench(
    *,
    ranks: Annotated[int, typer.Option(help="Processes that take part; 0: one per processor, but 2 to 4.")] = 0,
    hosts: Annotated[str, typer.Option(help="On several hosts, all on this machine: 2x2, or 3+1.")] = "",
    sizes: Annotated[str, typer.Option(help="Bytes of each rank's tensor, comma-separated.")] = "8,64KiB,1MiB,16MiB",
    seconds: Annotated[float, typer.Option(min=0.0, help="Time to measure for; start-up comes on top.")] = 10.0,
) -> None:
    """Compare all_reduce with Gloo's on this machine, and check every result.

    Takes the time to measure, ten seconds by default, and some to start; longer beside other programs, which the result
    then says. Each size is measured at least once, however long that takes. With --hosts: all_reduce over several
    hosts, and other calls on the largest size. The hosts are processes that share no memory, and speak over loopback.
    """
    names = {_nbytes(text): format_bytes(_nbytes(text), like=text) for text in sizes.split(",")}
    places, _ = known_hosts(hosts, ranks or None)
    if places:
        bench_hosts(places, names, seconds, _beside_others(places.ranks))
        return
    ranks = ranks or max(2, min(4, processors()))
    if ranks < 2:
        raise ArgumentError(f"{ranks} ranks have nothing to sum: give --ranks 2 or more")
    others = _beside_others(ranks)
    turns = _measure(ranks, names, seconds)
    times = {key: _slowest(of_key) for key, of_key in turns.items()}
    medians = {key: median(of_key) for key, of_key in times.items()}
    calls = [len(of_key) for of_key in times.values()]
    out = console()
    out.print(f"all_reduce of float32 on {ranks} ranks · {processor()}, {processors()} processors")
    out.print(f"unisono {unisono.__version__}, torch {torch.__version__} · {date()}\n")
    out.print(_table(medians, names))
    out.print(f"\n{_summary(medians, names)}{others}")
    out.print(f"Medians of {min(calls)} to {max(calls)} calls each, of the slowest rank; the engines take turns.")
    if ranks > processors():
        out.print(f"{ranks} ranks share {processors()} processors, so calls wait until all are scheduled.")
    wrong = {engine: _count_wrong(turns, engine) for engine in ENGINES}
    for engine, count in wrong.items():
        if count:
            out.print(f"[bold red]The benchmark has failed: {count} elements of {engine}'s results are wrong.[/]")
    if any(wrong.values()):
        raise typer.Exit(1)
    out.print("Every element of every result was right.")


def _beside_others(ranks: int) -> str:
    """What to say beside each verdict if other programs use the processors now; "" if they do not."""
    load = check_load(look_at_load(), processors(), ranks)
    return "" if load.level == "ok" else f"\n[bold red]But {load.says}: that is what was measured.[/]"


def _nbytes(text: str) -> int:
    nbytes = parse_bytes(text)
    if nbytes < 4 or nbytes % 4:
        raise ArgumentError(f"--sizes {text}: a float32 has 4 bytes; give multiples of 4, such as 8 or 64KiB")
    return nbytes


def _measure(ranks: int, sizes: Mapping[int, str], seconds: float) -> _Turns:
    """All turns; those after the first only while there is time. sizes: bytes -> the size in words."""
    turns: _Turns = {(nbytes, engine): [] for nbytes in sizes for engine in ENGINES}
    compile_first()
    with (
        progress(f"bench, {ranks} ranks", _TURNS * len(turns)) as show,
        tempfile.TemporaryDirectory() as folder,
        unisono.world(ranks, timeout_s=120) as world,
    ):
        show(0, "starting")
        for engine in ENGINES:
            world.run(measure, engine, folder, 4, 0.0)  # compiles and connects
        end, share_s = time.monotonic() + seconds, seconds / (_TURNS * len(turns))
        for turn in range(_TURNS):
            for place, ((nbytes, engine), done) in enumerate(turns.items()):
                if not turn or time.monotonic() < end:
                    done.append(world.run(measure, engine, folder, nbytes, share_s))
                show(turn * len(turns) + place + 1, f"{engine}, {sizes[nbytes]}")
    return turns


def _slowest(turns: Sequence[Sequence[Turn]]) -> list[float]:
    """Seconds of each call: those of its slowest rank."""
    return [max(call) for turn in turns for call in zip(*(rank.times for rank in turn), strict=True)]


def _table(medians: Mapping[tuple[int, str], float], names: Mapping[int, str]) -> Table:
    table = plain_table()
    for column in ("size", *ENGINES):
        table.add_column(column, justify="right")
    table.add_column("unisono is")
    for nbytes, name in names.items():
        ours, gloo = (medians[nbytes, engine] for engine in ENGINES)
        table.add_row(name, format_seconds(ours), format_seconds(gloo), f"[bold]{verdict(ours, gloo)}[/]")
    return table


def _summary(medians: Mapping[tuple[int, str], float], names: Mapping[int, str]) -> str:
    ratios = {nbytes: medians[nbytes, "Gloo"] / medians[nbytes, "unisono"] for nbytes in names}
    best, worst = max(ratios, key=ratios.__getitem__), min(ratios, key=ratios.__getitem__)
    said = f"[bold]Best: {verdict(1, ratios[best])}, at {names[best]}."
    return said + (f" Worst: {verdict(1, ratios[worst])}, at {names[worst]}.[/]" if worst != best else "[/]")


def _count_wrong(turns: _Turns, engine: str) -> int:
    return sum(rank.wrong for (_, of), done in turns.items() if of == engine for turn in done for rank in turn)
