"""`unisono explain`: which algorithm a call uses and why, its costs, its proof, its rounds."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..algorithms.formula import LINES
from ..draw.text import text
from ..errors import AlgorithmError
from ..units import format_bytes, parse_bytes, plural
from .facts import MOST_EXACT, Costs, Facts, bound_costs, facts
from .paint import console, paint, plain_table
from .report import VERBS, amount_text, proof_rows, reason, rounds_text
from .target import Target, find_target

__all__ = ["explain"]

_MOST_ROUNDS, _MOST_LINES = 16, 20


def explain(
    name: Annotated[str, typer.Argument(help="all_reduce, all_reduce.ring, or path/to/file.py:function")],
    *,
    ranks: Annotated[int, typer.Option(help="How many ranks take part.")] = 4,
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of the vector, such as 4096 or 16MiB.")] = "16MiB",
    algorithm: Annotated[str, typer.Option(help="This algorithm in place of the one that unisono would choose.")] = "",
    root: Annotated[int, typer.Option(help="The root, where there is one.")] = 0,
    collective: Annotated[str, typer.Option(help="What your own function is meant to be, such as all_reduce.")] = "",
    rounds: Annotated[bool, typer.Option(help="Show the rounds, one by one.")] = True,
    whole: Annotated[
        bool, typer.Option("--whole", help="Make and prove the whole table, however large it is.")
    ] = False,
) -> None:
    """Explain a collective: the algorithm and why, what it moves beside the lower bound, the proof, the rounds."""
    length = parse_bytes(nbytes)
    target = find_target(name, ranks, algorithm=algorithm, collective=collective, root=root, nbytes=length)
    target.check()
    kind, title = target.algorithm.collective, target.algorithm.full_name
    out = console()
    size = "" if kind == "barrier" else f" · {format_bytes(length, nbytes)}"
    out.print(f"[bold]{escape(title)}[/] · {plural(ranks, 'rank')}{size}, because {target.why}\n")
    grid = Text()
    if rounds and ranks <= MOST_EXACT:
        grid = paint(text(target.schedule, width=out.width, rounds=_MOST_ROUNDS, lines=_MOST_LINES))
    try:
        found = facts(target, whole)
    except AlgorithmError:
        out.print(grid, soft_wrap=True, end="")  # it shows where the table goes wrong
        raise
    if found.costs:
        out.print(_costs(target, found.costs, nbytes))
    out.print(f"\n{reason(kind, ranks, length, nbytes)}\n")
    out.print(_about(target, found))
    if grid:
        out.print()
        out.print(grid, soft_wrap=True, end="")
    elif rounds:
        out.print(f"\nThe rounds are shown up to {MOST_EXACT} ranks: see them with --ranks 8.")


def _costs(target: Target, costs: Costs, size: str) -> Table:
    """The costs beside the lower bounds. size: of the vector, as the user gave it."""
    kind, ranks = target.algorithm.collective, target.ranks
    bounds = bound_costs(kind, ranks)
    table = plain_table()
    for column in ("", "this algorithm", "lower bound"):
        table.add_column(column)
    many = costs.ports > 1
    table.add_row(
        "rounds",
        rounds_text(costs) + (f" of up to {plural(costs.ports, 'message')}" if many else ""),
        f"{bounds.rounds} with one message at a time" if many else f"{bounds.rounds}",
    )
    for verb, field in VERBS.items() if kind != "barrier" else ():
        who = "each rank" if field in costs.alike else "the busiest rank"
        cells = [amount_text(each, field, ranks, size) for each in (costs, bounds)]
        table.add_row(f"{who} {verb}", *cells)
    return table


def _about(target: Target, found: Facts) -> Table:
    table = plain_table()
    table.show_header = False
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for label, said in proof_rows(found):
        table.add_row(label, said)
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
