"""`unisono explain`: which algorithm a call uses and why, what it moves, that it is right, and how it goes."""

from __future__ import annotations

import inspect
import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..algorithms.formula import LINES
from ..draw.text import text
from ..draw.words import share
from ..errors import AlgorithmError
from ..schedule import Schedule
from ..schedule.count import count, lower_bounds
from ..schedule.proof import Proof, prove
from ..units import format_bytes, format_seconds, parse_bytes
from .bound import reason
from .paint import console, paint
from .target import Target, find_target

__all__ = ["explain"]

_MOST_ROUNDS, _MOST_LINES = 16, 20

_MIRROR = {
    "broadcast": "reduce",
    "reduce": "broadcast",
    "scatter": "gather",
    "gather": "scatter",
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
}
"""The collective with all arrows reversed: what one sends, the other receives."""


def explain(
    name: Annotated[str, typer.Argument(help="all_reduce, all_reduce.ring, or path/to/file.py:function")],
    *,
    ranks: Annotated[int, typer.Option(help="How many ranks take part.")] = 4,
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of the vector, such as 4096 or 16MiB.")] = "16MiB",
    algorithm: Annotated[str, typer.Option(help="This algorithm in place of the one that unisono would choose.")] = "",
    root: Annotated[int, typer.Option(help="The root, where there is one.")] = 0,
    collective: Annotated[str, typer.Option(help="What your own function is meant to be, such as all_reduce.")] = "",
    rounds: Annotated[bool, typer.Option(help="Show the rounds, one by one.")] = True,
) -> None:
    """Explain a collective: the algorithm and why, what it moves beside the lower bound, the proof, the rounds."""
    length = parse_bytes(nbytes)
    target = find_target(name, ranks, algorithm=algorithm, collective=collective, root=root, nbytes=length)
    schedule = target.schedule
    out = console()
    size = "" if schedule.collective == "barrier" else f" · {format_bytes(length)}"
    out.print(f"[bold]{escape(schedule.name)}[/] · {plural(ranks, 'rank')}{size}, because {target.why}\n")
    out.print(_costs(schedule, length))
    out.print(f"\n{reason(schedule.collective, ranks, length)}\n")
    grid = paint(text(schedule, width=out.width, rounds=_MOST_ROUNDS, lines=_MOST_LINES)) if rounds else ""
    begin = time.perf_counter()
    try:
        proof = prove(schedule)
    except AlgorithmError:
        out.print(grid, soft_wrap=True, end="")  # it shows where the table goes wrong
        raise
    out.print(_facts(target, proof, time.perf_counter() - begin))
    if rounds:
        out.print()
        out.print(grid, soft_wrap=True, end="")


def _costs(schedule: Schedule, nbytes: int) -> Table:
    counts, bounds = count(schedule), lower_bounds(schedule.collective, schedule.ranks)
    received = lower_bounds(_MIRROR.get(schedule.collective, schedule.collective), schedule.ranks).sent
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("", "this algorithm", "lower bound"):
        table.add_column(column)
    many = counts.ports > 1
    table.add_row(
        "rounds",
        f"{counts.rounds} of up to {counts.ports} messages" if many else f"{counts.rounds}",
        f"{bounds.rounds} with one message at a time" if many else f"{bounds.rounds}",
    )

    def amount(fraction: float) -> str:
        exact = share(fraction, schedule.ranks)
        return exact if exact == "0" else f"{exact} = {format_bytes(fraction * nbytes)}"

    rows = (
        ("sends", counts.sent, bounds.sent),
        ("receives", counts.received, received),
        ("adds", counts.added, bounds.added),
    )
    if schedule.collective != "barrier":
        for verb, each, least in rows:
            who = "each rank" if len(set(each)) == 1 else "the busiest rank"
            table.add_row(f"{who} {verb}", amount(max(each)), amount(least))
    return table


def _facts(target: Target, proof: Proof, took_s: float) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
    table.add_column(style="dim")
    table.add_column()
    proved = "every rank ends with what it must have, each contribution exactly once"
    table.add_row("proved", f"in {format_seconds(took_s)}: {proved}")
    if proof.same_bits is not None:
        table.add_row("bits", "the same on every rank" if proof.same_bits else "may differ between ranks, by rounding")
    label = "idea"
    for line in inspect.cleandoc(target.algorithm.doc).splitlines():
        head, colon, rest = line.partition(": ")
        if colon and head in LINES:
            table.add_row(head, escape(rest))
        elif line:
            table.add_row(label, escape(line))
            label = ""
    table.add_row("written in", escape(target.source))
    return table
