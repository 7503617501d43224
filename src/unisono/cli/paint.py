"""The console that commands print on, and the colours of a grid."""

from __future__ import annotations

import os
import re
import sys

from rich.console import Console
from rich.text import Text

from ..draw.text import MARK

__all__ = ["console", "paint"]


def console() -> Console:
    """Standard output. As wide as COLUMNS says, else as the terminal; 100 columns where there is none."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=False, width=None if known else 100)


def paint(grid: str) -> Text:
    """Colour a grid made by `draw.text`: the chunks written in a round, the arrows, the headings."""
    painted = Text(grid)
    painted.highlight_regex(re.escape(MARK) + r"\S+", "bold green")
    painted.highlight_regex(r"─+[+∪]?─*→", "cyan")
    painted.highlight_regex(re.compile(r"^(round \d+|before)", re.MULTILINE), "bold")
    painted.highlight_regex(r"(?<= )rank \d+|chunks? |· ", "dim")
    return painted
