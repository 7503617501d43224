"""`unisono draw`: a table as a picture, a page that plays it, or text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ..draw import html, svg, svg_contract, text
from ..errors import AlgorithmError, ArgumentError
from ..schedule import Schedule, find_fault
from ..units import plural
from .paint import console, paint
from .target import find_target

__all__ = ["draw", "write"]


def _whole_text(schedule: Schedule) -> str:
    return text(schedule, width=None)


_FORMATS: dict[str, Callable[[Schedule], str]] = {".svg": svg, ".html": html, ".txt": _whole_text}


def draw(
    name: Annotated[str, typer.Argument(help="all_reduce.ring, or path/to/file.py:function")],
    *,
    ranks: Annotated[int, typer.Option(help="How many ranks take part.")] = 4,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file that ends in .svg, .html or .txt; else the terminal.")
    ] = None,
    root: Annotated[int, typer.Option(help="The root, where there is one.")] = 0,
    collective: Annotated[str, typer.Option(help="What your own function is meant to be, such as all_reduce.")] = "",
    contract: Annotated[bool, typer.Option("--contract", help="Only what is there before and after, as .svg.")] = False,
) -> None:
    """Draw the rounds of an algorithm from the very table that runs."""
    schedule = find_target(name, ranks, collective=collective, root=root).schedule
    if contract and (output is None or output.suffix != ".svg"):
        raise ArgumentError("--contract makes a picture: name its file, as in --output before_after.svg")
    if output is None:
        out = console()
        out.print(paint(text(schedule, width=out.width)), soft_wrap=True, end="")
    elif output.suffix not in _FORMATS:
        raise ArgumentError(f"{output}: the name of the file must end in {', '.join(_FORMATS)}")
    else:
        write(output, (svg_contract if contract else _FORMATS[output.suffix])(schedule))
        typer.echo(f"wrote {output}: {schedule.name} at {plural(ranks, 'rank')}", err=True)
    found = find_fault(schedule)
    if found:
        raise AlgorithmError(found)


def write(output: Path, content: str) -> None:
    """Write a file. Raises ArgumentError where that is not possible."""
    try:
        output.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {output}: {error.strerror}") from error
