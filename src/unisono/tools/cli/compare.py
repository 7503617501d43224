"""`unisono compare`: algorithms of one collective side by side."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from ...base.errors import ArgumentError
from ...base.units import format_bytes, parse_bytes, plural
from ...schedule.algorithms import CATALOGUE, lines
from .explain import VERBS, amount_text, bits_text, rounds_text
from .shared.printing import console, plain_table, progress
from .shared.target import Costs, Facts, Target, bound_costs, facts, find_target

_Row = tuple[str, list[str]]


def compare(
    names: Annotated[list[str], typer.Argument(help="Algorithms, such as ring tree one_shot or all_gather.ring.")],
    *,
    ranks: Annotated[int, typer.Option(help="How many ranks take part.")] = 8,
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of the vector, such as 4096 or 16MiB.")] = "16MiB",
    collective: Annotated[str, typer.Option(help="What they do, where their names do not say it.")] = "all_reduce",
    root: Annotated[int, typer.Option(help="The root, where there is one.")] = 0,
) -> None:
    """Compare algorithms of one collective: rounds, bytes, bits, and when each is best."""
    parse_bytes(nbytes)
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
