"""The speed of collectives beside other libraries: `python -m benchmarks.collectives`."""

from typing import Annotated

import typer

from unisono.base.errors import ArgumentError
from unisono.base.units import parse_bytes

from ..runs import ENGINE, Output, begin, hand_in
from .session import OPS, Plan, Session

_HOW = """\
Every rank rewrites its whole input (and output) before each timed call; all ranks meet in a barrier; each times one
call; an iteration takes as long as its slowest rank. Contenders take turns within each round, every result is checked
element by element. Sizes count as in nccl-tests: the larger tensor of a rank. memcpy: all ranks copy this number of
bytes at once. Ranks that wait in the barrier compete with Gloo's own threads for the processors, which spoils Gloo's
medians more than its least times."""


def bench(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, separated by commas.")] = "2,4",
    quick: Annotated[bool, typer.Option("--quick", help="One round, fewer sizes, about a minute.")] = False,
    only: Annotated[str, typer.Option(help=f"Some of {','.join(OPS)}.")] = ",".join(OPS),
    sizes: Annotated[str, typer.Option(help="These sizes for every collective, such as 8,64KiB.")] = "",
    mpi: Annotated[bool, typer.Option(help="Measure three MPIs and DeepSpeed too, where installed.")] = True,
    output: Output = None,
) -> None:
    """Measure unisono against Gloo, the MPIs, DeepSpeed and the memory. Fails if a result is wrong."""
    ops = only.split(",")
    if unknown := [op for op in ops if op not in OPS]:
        raise ArgumentError(f"unknown collective {unknown[0]!r}: choose from {', '.join(OPS)}")
    run = begin("Speed of collectives", _HOW, code=ENGINE)
    session = Session(
        Plan([op for op in OPS if op in ops], [parse_bytes(size) for size in sizes.split(",") if size], quick, mpi)
    )
    for count in map(_count, ranks.split(",")):
        session.run(count)
    run.how += session.notes
    run.tables.append(session.table())
    hand_in(run, output)
    if session.wrong:
        raise SystemExit(f"{session.wrong} elements were wrong: this benchmark has failed")


def _count(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 2:
        raise ArgumentError(f"{text!r} ranks cannot be compared: give numbers from 2 on, such as 2,4")
    return int(text)


if __name__ == "__main__":
    typer.run(bench)
