"""What commands print and write: the console, tables, colours, progress, files, and the machine and date of figures."""

import datetime
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from ....base.errors import ArgumentError
from ....base.python import at_terminal
from ....base.units import format_bytes, parse_bytes
from ....schedule.draw.text import MARK, WRONG, share


def console() -> Console:
    """Standard output. Its width is COLUMNS, otherwise the terminal's, otherwise 80 columns."""
    known = at_terminal(sys.stdout) or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, width=None if known else 80)


def plain_table(*columns: str) -> Table:
    """A table without lines."""
    return Table(*columns, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of labels and texts."""
    table = plain_table()
    table.show_header = False
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def amount_text(fraction: float, parts: int, size: str) -> str:
    """A share of a vector, such as `6/4 m = 24 MiB` with 4 parts. size: of the vector, as the user gave it."""
    exact = share(fraction, parts)
    return exact if exact == "0" else f"{exact} = {format_bytes(fraction * parse_bytes(size), size)}"


def paint(grid: str) -> Text:
    """Colour a grid made by `schedule.draw.text`: the chunks written in a round, the arrows, the headings."""
    painted = Text(grid)
    painted.highlight_regex(re.escape(MARK) + r"\S+", "bold green")
    painted.highlight_regex(re.escape(WRONG) + r"\S+", "bold red")
    painted.highlight_regex(r"─+[+∪]?─*→", "cyan")
    painted.highlight_regex(r"═+[+∪]?→?", "bold magenta")
    painted.highlight_regex(re.compile(r"^(round \d+|before)", re.MULTILINE), "bold")
    painted.highlight_regex(r"(?<= )(rank|host) \d+|chunks? |· |│", "dim")
    return painted


@contextmanager
def file_errors(what: str) -> Iterator[None]:
    """Make an error of files one sentence. what: such as "write x.svg". Raises ArgumentError."""
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"cannot {what}: {error.strerror or error}") from error


def date() -> str:
    """Now, to the minute, as `2026-11-20 20:42 UTC`."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def at_work(text: str) -> Status:
    """A context: on a terminal, show on standard error what a command does, until it is done. `update` changes it."""
    return Console(stderr=True, highlight=False).status(escape(text))


def compile_first() -> None:
    """Compile the kernels if they are not on disk and can be kept there. It takes ten seconds or more.

    Commands call this before they start ranks, as ranks show no progress.
    """
    from ....engine.kept import writable_folder
    from ....engine.kernels import unit

    if unit("interpret.run").on_disk or writable_folder() is None:
        return
    with at_work("compiling, once per installation"):
        from ....engine.rank import warm_up  # torch and numba

        warm_up()
