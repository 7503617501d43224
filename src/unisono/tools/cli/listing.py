"""`unisono list`: the catalogue of algorithms."""

import inspect
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ...schedule.algorithms import CATALOGUE, formula, lines
from ...schedule.algorithms.catalogue import COLLECTIVES, check_collective
from .shared.printing import console


def listing(
    collective: Annotated[str, typer.Argument(help="Only the algorithms of this collective, such as all_reduce.")] = "",
) -> None:
    """List the algorithms: rounds, bytes that the busiest rank sends, what they require, and how they work."""
    if collective:
        check_collective(collective)
    out = console()
    for shown in [collective] if collective else COLLECTIVES:
        table = Table(
            title=shown, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
        )
        table.add_column(no_wrap=True, style="cyan")
        table.add_column()
        for algorithm in CATALOGUE.values():
            if algorithm.collective == shown:
                said = lines(algorithm.doc)
                costs = f"rounds {said['rounds']} · bytes {said['bytes']}"
                needs = f" · requires {', '.join(algorithm.requires)}" if algorithm.requires else ""
                table.add_row(algorithm.name, f"{escape(said['idea'])}\n[dim]{escape(costs + needs)}[/]")
        out.print(table)
        out.print()
    meaning = (inspect.getdoc(formula) or "").split("\n\n")[-1]
    out.print(f"[dim]{escape(' '.join(meaning.split()))}[/]")
