"""How far a command has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["progress"]


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show on standard error how many of `total` steps are done. Yields a function to call with this and a comment.

    A terminal has a bar. A pipe or a file gets a line at once, and one whenever another tenth is done.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if console.is_terminal:
        columns = TextColumn(title), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=total)
            yield lambda done, comment: bar.update(task, completed=done, description=comment)
        return
    tenths = 0

    def show(done: int, comment: str) -> None:
        nonlocal tenths
        if tenths < 10 * done // total:
            tenths = 10 * done // total
            console.print(f"{title}: {10 * tenths} %  {comment}", soft_wrap=True)

    console.print(f"{title}: 0 %", soft_wrap=True)
    yield show
