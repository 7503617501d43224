"""`unisono compare`: algorithms of one collective side by side, as a table or as a page with their pictures."""

from __future__ import annotations

from html import escape as html_escape
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ...base.errors import ArgumentError
from ...base.units import format_bytes, parse_bytes, plural
from ...schedule.algorithms import CATALOGUE, lines
from ...schedule.draw import svg
from .explain.costs_text import VERBS, amount_text, bits_text, rounds_text
from .shared.facts import Costs, Facts, bound_costs, facts
from .shared.named_files import write
from .shared.paint import console, plain_table
from .shared.progress_bar import progress
from .shared.target import Target, find_target

_Row = tuple[str, list[str]]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%(title)s</title>
<style>
  :root { color-scheme: light dark }
  body { margin: 2rem; font: 16px/1.5 ui-sans-serif, system-ui, sans-serif }
  table { border-collapse: collapse }
  th, td { text-align: left; vertical-align: top; padding: .2rem 1.5rem .2rem 0; max-width: 24rem }
  main { display: flex; flex-wrap: wrap; gap: 1rem; margin-top: 2rem; align-items: start }
</style>
<h1>%(title)s</h1>
<table>
%(rows)s
</table>
<main>
%(pictures)s
</main>
</html>
"""


def compare(
    names: Annotated[list[str], typer.Argument(help="Algorithms, such as ring tree one_shot or all_gather.ring.")],
    *,
    ranks: Annotated[int, typer.Option(help="How many ranks take part.")] = 8,
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of the vector, such as 4096 or 16MiB.")] = "16MiB",
    collective: Annotated[str, typer.Option(help="What they do, where their names do not say it.")] = "all_reduce",
    root: Annotated[int, typer.Option(help="The root, where there is one.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="An .html page with the table and the pictures side by side.")
    ] = None,
) -> None:
    """Compare algorithms of one collective: rounds, bytes, bits, and when each is best."""
    parse_bytes(nbytes)
    if output is not None and output.suffix != ".html":
        raise ArgumentError(f"{output}: the name of the page must end in .html")
    full = [name if "." in name else f"{collective}.{name}" for name in names]
    targets = [find_target(name, ranks, collective=collective, root=root) for name in full]
    kinds = list(dict.fromkeys(target.algorithm.collective for target in targets))
    if len(kinds) > 1:
        raise ArgumentError(f"only algorithms of one collective can be compared, not of {' and '.join(kinds)}")
    found = []
    with progress(f"compare, {plural(ranks, 'rank')}", len(targets)) as show:
        for done, target in enumerate(targets):
            show(done, target.algorithm.full_name)
            found.append(facts(target))
    rows = _rows(targets, found, nbytes)
    title = f"{kinds[0]} · {plural(ranks, 'rank')}" + (f" · {format_bytes(parse_bytes(nbytes), nbytes)}")
    heads = [target.algorithm.name for target in targets] + ["lower bound"]
    if output is not None:
        with progress("drawing"):
            page = _page(title, heads, rows, targets)
        write(output, page)
        typer.echo(f"wrote {output}: {title}", err=True)
        return
    out = console()
    table = plain_table()
    table.add_column()
    for head in heads:
        table.add_column(head, overflow="fold")
    for label, cells in rows:
        table.add_row(label, *map(escape, cells))
    out.print(f"[bold]{escape(title)}[/]\n")
    out.print(table)


def _rows(targets: list[Target], found: list[Facts], size: str) -> list[_Row]:
    """The lines of the comparison: a label, a cell for each algorithm, and one for the lower bound."""
    kind, ranks = targets[0].algorithm.collective, targets[0].ranks
    bounds = bound_costs(kind, ranks)
    known = [each.costs or Costs(float("nan"), float("nan"), None, None) for each in found]
    rows = [
        ("rounds", [rounds_text(costs) for costs in (*known, bounds)]),
        ("messages a rank sends", [*("?" if c.messages is None else f"{c.messages}" for c in known), ""]),
        ("at most in a round", [*("?" if c.messages is None else f"{c.ports}" for c in known), "1"]),
    ]
    if kind != "barrier":
        for verb, field in VERBS.items():
            rows.append((f"a rank {verb} ≤", [amount_text(costs, field, ranks, size) for costs in (*known, bounds)]))
    rows.append(("proved", [*("yes" if each.proof else each.note for each in found), ""]))
    if any(map(bits_text, found)):
        rows.append(("bits", [*map(bits_text, found), ""]))
    algorithms = [target.algorithm for target in targets]
    rows.append(("requires", [*(", ".join(algorithm.requires) or "nothing" for algorithm in algorithms), ""]))
    rows.append(("best for", [*(lines(a.doc)["wins"] if a.full_name in CATALOGUE else "" for a in algorithms), ""]))
    return rows


def _page(title: str, heads: list[str], rows: list[_Row], targets: list[Target]) -> str:
    table = [("", heads), *rows]
    return _PAGE % {
        "title": html_escape(title),
        "rows": "\n".join(
            "<tr>" + "".join(f"<t{tag}>{html_escape(cell)}</t{tag}>" for cell in cells) + "</tr>"
            for number, (label, each) in enumerate(table)
            for tag, cells in [("d" if number else "h", [label, *each])]
        ),
        "pictures": "\n".join(map(_picture, targets)),
    }


def _picture(target: Target) -> str:
    try:
        return svg(target.schedule)
    except ArgumentError as error:
        return f"<p>{html_escape(str(error))}</p>"
