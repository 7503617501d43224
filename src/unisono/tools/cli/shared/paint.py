"""The console that commands print on, a plain table, and the colours of a grid."""

from __future__ import annotations

import os
import re
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ....schedule.draw.text import MARK, WRONG


def console() -> Console:
    """Standard output. As wide as COLUMNS says, else as the terminal; 80 columns where there is none."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, width=None if known else 80)


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")


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
