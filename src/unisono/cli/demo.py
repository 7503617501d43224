"""`unisono demo`: the six collectives on real ranks, then a model trained by several ranks, with Gloo beside it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import unisono

from ..choose import choose
from ..draw import svg, text
from ..errors import ArgumentError
from .demo_collectives import COLLECTIVES, SMALL_BYTES, perform
from .demo_model import LENGTH
from .demo_report import collectives, difference, mean_loss, summary
from .demo_train import BATCH, ENGINES, Step, advance, fingerprint, sample

__all__ = ["demo"]

_TURN = 10
"""Steps that an engine trains before the other has its turn: both see the same machine."""


def demo(
    ranks: Annotated[int, typer.Option(help="Processes that take part.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of training, with each engine.")] = 150,
    pictures: Annotated[Path | None, typer.Option(help="Write pictures of the collectives into this folder.")] = None,
) -> None:
    """Show the six collectives at work, then train a small language model on all ranks."""
    if ranks < 2 or steps < 1:
        raise ArgumentError(f"{ranks} ranks, {steps} steps: the demo needs at least 2 ranks and 1 step")
    console = Console()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, unisono.world(ranks, timeout_s=120) as world:
        console.rule(f"Six collectives on {ranks} ranks")
        console.print(collectives(world.run(perform)))
        _show_algorithm(console, ranks, pictures)
        console.rule("Data-parallel training")
        console.print(
            "A GRU learns to write Python from the sources of the standard library. Each of the "
            f"{ranks} ranks has the whole model and its own part of the text, {BATCH} windows of {LENGTH} characters a "
            "step; one all_reduce averages all gradients. The same training runs on Gloo, in turns.",
            highlight=False,
        )
        trained = _train(console, world, folder, steps)
        console.print(summary(trained))
        _compare(console, trained, {engine: world.run(fingerprint, engine, folder) for engine in ENGINES})
        written = world.run(sample, ENGINES[0], folder, "def ", 300)[0]
        console.print(Panel(Text(written), title=f"What the model writes after {steps} steps", width=100))
    console.print(f"All of this took {time.monotonic() - begin:.0f} s.", highlight=False)


def _show_algorithm(console: Console, ranks: int, pictures: Path | None) -> None:
    """The table of transfers that this all_reduce was, and pictures of all that ran."""
    schedules = {name: choose(name, SMALL_BYTES, ranks).algorithm.schedule(ranks) for name in COLLECTIVES}
    console.print(f"This all_reduce was [bold]{schedules['all_reduce'].name}[/], a table of transfers:")
    console.print(text(schedules["all_reduce"], width=console.width), markup=False, highlight=False)
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, schedule in schedules.items():
            (pictures / f"{name}.svg").write_text(svg(schedule), encoding="utf-8")
        console.print(f"Pictures of all six: {pictures}", highlight=False)


def _train(console: Console, world: Any, folder: str, steps: int) -> dict[str, list[list[Step]]]:
    """Both engines, in turns."""
    trained: dict[str, list[list[Step]]] = {engine: [] for engine in ENGINES}
    columns = TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TextColumn("{task.fields[loss]}"), console=console) as progress:
        bars = {engine: progress.add_task(engine, total=steps, loss="") for engine in ENGINES}
        for first in range(0, steps, _TURN):
            for engine, done in trained.items():
                by_rank = world.run(advance, engine, folder, min(_TURN, steps - first))
                done.extend(map(list, zip(*by_rank, strict=True)))
                progress.update(bars[engine], completed=len(done), loss=f"loss {mean_loss(done[-1]):.3f}")
    return trained


def _compare(console: Console, trained: dict[str, list[list[Step]]], models: dict[str, list[str]]) -> None:
    """Are the models of all ranks the same, and are the losses of both engines?"""
    for engine, bits in models.items():
        same = "have the same bits" if len(set(bits)) == 1 else "differ"
        console.print(f"{engine}: the models of all ranks {same}.")
    console.print(
        f"The losses of both trainings are at most {difference(*trained.values()):.2g} apart: unisono adds in the "
        "order of the ranks, Gloo in that of its ring, and a sum of floats is rounded at every step of its way.",
        highlight=False,
    )
