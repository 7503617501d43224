"""`unisono draw`: a table as a picture, a page that plays it, or text."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ...base.config import Config
from ...base.errors import AlgorithmError, ArgumentError
from ...base.link import Link
from ...base.units import parse_bytes, plural
from ...schedule import Hosts, Schedule, find_fault
from ...schedule.draw import html, svg, text
from .shared.costs_over_hosts import find_call, known_hosts
from .shared.printing import at_work, console, file_errors, paint
from .shared.target import find_target, ranks_of

_MOST_RANKS = 1024
_FORMATS: dict[str, Callable[[Schedule], str]] = {".svg": svg, ".html": html, ".txt": partial(text, width=None)}


def draw(
    name: Annotated[str, typer.Argument(help="all_reduce.ring, path/to/file.py:function, or path/to/file.xml")],
    beside: Annotated[str, typer.Argument(help="A second algorithm, for an .html page.")] = "",
    *,
    ranks: Annotated[
        int | None, typer.Option(help="Number of ranks. Default: 4, or that of --hosts or the file.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file that ends in .svg, .html or .txt. Default: the terminal."),
    ] = None,
    root: Annotated[int, typer.Option(help="The root rank, for collectives with a root.")] = 0,
    hosts: Annotated[
        str,
        typer.Option(help="Hosts of the ranks: 2x2, 3+1 or 2x2:round_robin. For a collective: draw a call over them."),
    ] = "",
    nbytes: Annotated[
        str, typer.Option("--bytes", help="Size of the vector, for the clock of a page and the choice of an algorithm.")
    ] = "16MiB",
    link: Annotated[
        str, typer.Option(help="The network, for the same, such as 1Gbit,100us. Default: UNISONO_LINK.")
    ] = "",
) -> None:
    """Draw the rounds of an algorithm: as text, a picture, or a page that plays them.

    With --hosts, frames contain the ranks of each host, and transfers between hosts look different.
    """
    suffix, size = output.suffix if output else "", parse_bytes(nbytes)
    if suffix != ".html" and (beside or (link and not hosts)):
        raise ArgumentError("only a page shows a second algorithm, or --link without --hosts. Add -o page.html.")
    places = known_hosts(hosts, ranks, ranks_of(name))
    if places[1] > _MOST_RANKS:
        raise ArgumentError(f"{places[1]} ranks are too many to draw. Use unisono explain, which takes more.")
    named = {"root": root, "nbytes": size}
    with at_work("making the table"):
        tables = [_table(each, places, link, **named) for each in (name, *[beside] * bool(beside))]
    schedule = tables[0]
    if output is None:
        out = console()
        out.print(paint(text(schedule, width=out.width)), soft_wrap=True, end="")
    elif suffix not in _FORMATS:
        raise ArgumentError(f"{output}: the name of the file must end in {', '.join(_FORMATS)}")
    else:
        network = Link.parse(link) if link else Config.from_env().link
        with at_work(f"drawing {schedule.name}"):
            if suffix == ".html":
                content: str = html(*tables, nbytes=size, link=network)
            else:
                content = _FORMATS[suffix](schedule)
        with file_errors(f"write {output}"):
            output.write_text(content, encoding="utf-8")
        names = " and ".join(each.name for each in tables)
        typer.echo(f"wrote {output}: {names} at {plural(schedule.ranks, 'rank')}", err=True)
    for each in tables:
        with at_work(f"proving {each.name}"):
            found = find_fault(each)
        if found:
            raise AlgorithmError(found)


def _table(name: str, shape: tuple[Hosts | None, int], link: str, **named: int) -> Schedule:
    """named: root and nbytes."""
    hosts, ranks = shape
    call = find_call(name, hosts, link=link, **named) if hosts else None
    return call.table if call else find_target(name, ranks, **named).schedule.replace(hosts=hosts)
