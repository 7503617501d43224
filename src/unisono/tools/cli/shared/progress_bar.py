"""A progress bar for commands that take longer than a second, on a terminal only.

A pipe, a file or a log gets results only. The bar goes when the work is done. The kernels are compiled once per
installation. Commands compile them before they start ranks, as ranks show no progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(title: str, total: int | None = None, after_s: float = 1.0) -> Iterator[Callable[[int, str], None]]:
    """Show on standard error how many of `total` steps are done. Yields a function of this number and a comment.

    Without a total, the bar says only that work goes on, and since when. One bar at a time.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    if not console.is_terminal:
        yield lambda _done, _comment: None
        return
    columns = (
        TextColumn("{task.fields[title]}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=total, title=title)
    timer = threading.Timer(after_s, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, comment: bar.update(task, completed=done, description=comment)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def compile_first() -> None:
    """Compile the kernels if they are not on disk and can be kept there. It takes ten seconds or more."""
    from ....engine.kernels import unit
    from ....engine.machine_code import writable_folder

    if unit("interpret.run").on_disk or writable_folder() is None:
        return
    with progress("compiling, once per installation"):
        from ....engine.host import warm_up  # torch and numba

        warm_up()
