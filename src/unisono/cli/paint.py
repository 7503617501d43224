"""The console, and the colours of a grid on it."""

from __future__ import annotations

import re
import sys

from rich.console import Console
from rich.text import Text

from ..draw.text import MARK

__all__ = ["console", "paint"]


def console() -> Console:
    """As wide as the terminal; where there is none, as wide as this page."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def paint(grid: str) -> Text:
    """A grid as `draw.text` makes it, in colours: what has just been written, the arrows, the rounds."""
    painted = Text(grid)
    painted.highlight_regex(re.escape(MARK) + r"\S+", "bold green")
    painted.highlight_regex(r"─+[+∪]?─*→", "cyan")
    painted.highlight_regex(re.compile(r"^(round \d+|before)", re.MULTILINE), "bold")
    painted.highlight_regex(r"(?<= )rank \d+|chunks? |· ", "dim")
    return painted
