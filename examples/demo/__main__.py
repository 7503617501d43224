"""Six collectives on real ranks, then a model trained on all ranks, with unisono and with Gloo.

python -m examples.demo [--ranks 4] [--steps 150]
"""

from __future__ import annotations

import tempfile
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import unisono
from unisono.base.errors import ArgumentError
from unisono.schedule.choose import choose
from unisono.schedule.draw import text
from unisono.tools.cli.shared.printing import at_work, compile_first, console
from unisono.tools.cli.shared.timed_calls import LIBRARIES

from .collectives import SMALL_BYTES, perform
from .model import LENGTH
from .report import collectives, difference, mean_loss, summary
from .training import BATCH, Step, advance, fingerprint, sample

_TURN = 10
"""Steps of one engine before the other continues, so that a change of the machine's speed affects both."""


def demo(
    ranks: Annotated[int, typer.Option(help="Processes that take part.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of training, with each engine.")] = 150,
) -> None:
    """Show the six collectives at work, then train a small language model on all ranks."""
    if ranks < 2 or steps < 1:
        raise ArgumentError(f"{ranks} ranks, {steps} steps: the demo needs at least 2 ranks and 1 step")
    out = console()
    begin = time.monotonic()
    out.print(f"Starting {ranks} processes.")
    compile_first()
    with tempfile.TemporaryDirectory() as folder, unisono.world(ranks, timeout_s=120) as world:
        with at_work("starting"):
            shown = collectives(world.run(perform))
        out.rule(f"Six collectives on {ranks} ranks")
        out.print(shown)
        _show_algorithm(out, ranks)
        out.rule("Data-parallel training")
        out.print(
            "A GRU learns to write Python from the sources of the standard library. Each of the "
            f"{ranks} ranks has the whole model and its own part of the text, {BATCH} windows of {LENGTH} characters a "
            "step; one all_reduce averages all gradients. The same training runs on Gloo, in turns.",
        )
        trained = _train(world, folder, steps)
        out.print(summary(trained))
        _compare(out, trained, {library: world.run(fingerprint, library, folder) for library in LIBRARIES})
        written = world.run(sample, LIBRARIES[0], folder, "def ", 300)[0]
        out.print(Panel(Text(written), title=f"What the model writes after {steps} steps", width=min(100, out.width)))
    out.print(f"All of this took {time.monotonic() - begin:.0f} s.")


def _show_algorithm(out: Console, ranks: int) -> None:
    """Print the table of the all_reduce that ran."""
    schedule = choose("all_reduce", SMALL_BYTES, ranks).algorithm.schedule(ranks)
    out.print(f"This all_reduce was [bold]{schedule.name}[/], a table of transfers:")
    out.print(text(schedule, width=out.width), markup=False)


def _train(world: Any, folder: str, steps: int) -> dict[str, list[list[Step]]]:
    """Train with both engines, in turns. Returns for each library and step what each rank saw."""
    trained: dict[str, list[list[Step]]] = {library: [] for library in LIBRARIES}
    with at_work("training") as status:
        for first in range(0, steps, _TURN):
            for engine, done in trained.items():
                by_rank = world.run(advance, engine, folder, min(_TURN, steps - first))
                done.extend(map(list, zip(*by_rank, strict=True)))
                status.update(f"step {len(done)} of {steps} on {engine}, loss {mean_loss(done[-1]):.3f}")
    return trained


def _compare(out: Console, trained: dict[str, list[list[Step]]], models: dict[str, list[str]]) -> None:
    """Say whether the models of all ranks are equal, and how far apart the losses of both engines are."""
    for engine, bits in models.items():
        same = "have the same bits" if len(set(bits)) == 1 else "differ"
        out.print(f"{engine}: the models of all ranks {same}.")
    out.print(
        f"The losses of both trainings are at most {difference(*trained.values()):.2g} apart: unisono adds in the "
        "order of the ranks, Gloo in that of its ring, and a sum of floats is rounded at every step of its way.",
    )


if __name__ == "__main__":
    typer.run(demo)
