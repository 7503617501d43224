"""The speed of collectives beside other libraries, and the table of goals: `python -m benchmarks.collectives`."""

from pathlib import Path
from typing import Annotated

import typer

from unisono.base.errors import ArgumentError
from unisono.base.units import format_seconds, parse_bytes

from ..reports import Output, describe, report_path
from .extras import measure_start
from .goals import table
from .report import figures, markdown
from .report import plot as draw
from .session import OPS, Plan, Session

_PARTS = (*OPS, "start")


def bench(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, separated by commas.")] = "2,4",
    quick: Annotated[bool, typer.Option("--quick", help="One round, fewer sizes, about a minute.")] = False,
    only: Annotated[str, typer.Option(help=f"Some of {','.join(_PARTS)}.")] = ",".join(_PARTS),
    sizes: Annotated[str, typer.Option(help="These sizes for every collective, such as 8,64KiB.")] = "",
    mpi: Annotated[bool, typer.Option(help="Measure three MPIs and DeepSpeed too, where installed.")] = True,
    output: Output = None,
    plot: Annotated[Path | None, typer.Option(help="Write time against size here, as SVG.")] = None,
) -> None:
    """Measure unisono against Gloo, the MPIs, DeepSpeed and the memory, and print the table of goals."""
    parts = only.split(",")
    unknown = [part for part in parts if part not in _PARTS]
    if unknown:
        raise ArgumentError(f"{unknown[0]!r} cannot be measured: choose from {', '.join(_PARTS)}")
    plan = Plan([op for op in OPS if op in parts], [parse_bytes(size) for size in sizes.split(",") if size], quick, mpi)
    machine = describe()
    worlds, session = [_count(text) for text in ranks.split(",")], Session(plan)
    extras = measure_start() if "start" in parts else {}
    for size in worlds if plan.ops else []:
        session.run(size)
    known = figures(session.records)
    if known:
        machine["mode"] = f"a barrier takes {format_seconds(min(figure.barrier_s for figure in known.values()))}"
    wrong = sum(figure.wrong for figure in known.values())
    if wrong:
        session.notes.insert(0, f"**{wrong} elements were wrong: this benchmark has failed**")
    report = markdown(machine, session.notes, table(known, extras), known)
    print(report)
    output, plot = (path and report_path(path) for path in (output, plot))
    if output:
        output.write_text(report)
    if plot:
        draw(known, machine, plot)
    if wrong:
        raise typer.Exit(1)


def _count(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 2:
        raise ArgumentError(f"{text!r} ranks cannot be compared: give numbers from 2 on, such as 2,4")
    return int(text)


if __name__ == "__main__":
    typer.run(bench)
