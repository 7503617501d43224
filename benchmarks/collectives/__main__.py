"""The speed of collectives beside other libraries: `python -m benchmarks.collectives`."""

from typing import Annotated

import typer

from unisono.base.errors import ArgumentError
from unisono.base.units import parse_bytes

from ..ranks import places
from ..runs import ENGINE, HOSTS, Output, begin, hand_in
from .session import OPS, Plan, Session

_HOW = """\
Every rank rewrites its whole input (and output) before each timed call; all ranks meet in a barrier; each times one
call; an iteration takes as long as its slowest rank. Contenders take turns within each round, every result is checked
element by element. Sizes count as in nccl-tests: the larger tensor of a rank. memcpy: all ranks copy this number of
bytes at once."""
_LATE = """\
Behind the barrier, one rank sleeps or computes for so long, and then calls; the others have called before. A figure is
the time from its call until the last rank is out; for memcpy it is the late rank's own copy, which needs no peer.
Ranks take turns in being late."""
_HOSTS = """\
Hosts are network namespaces of this machine. All ranks share its processors, so where links have no limit, the figures
say what the processors do."""


def bench(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks on this host.")] = "2",
    hosts: Annotated[str, typer.Option(help="In place of ranks: hosts in namespaces, such as 2x1,2x2. As root.")] = "",
    rates: Annotated[str, typer.Option(help="Of each link between hosts, both ways; none: no limit.")] = "none",
    late: Annotated[bool, typer.Option("--late", help="Measure calls in which one rank is late.")] = False,
    busy: Annotated[str, typer.Option(help="Numbers of background processes that compute.")] = "0",
    only: Annotated[str, typer.Option(help=f"Some of {','.join(OPS)}. If a rank is late: all_reduce.")] = "",
    sizes: Annotated[str, typer.Option(help="These sizes for every collective, such as 8,64KiB.")] = "",
    mpi: Annotated[bool, typer.Option(help="Measure three MPIs, too, where installed; over hosts Open MPI.")] = True,
    seconds: Annotated[float, typer.Option(help="For each contender, size and round.")] = 0.2,
    rounds: Annotated[int, typer.Option(min=1, help="How often each contender has its turn.")] = 3,
    output: Output = None,
) -> None:
    """Measure unisono against Gloo, the MPIs and the memory. Fails if a result is wrong."""
    ops = (only or ("all_reduce" if late else ",".join(OPS))).split(",")
    if unknown := [op for op in ops if op not in OPS]:
        raise ArgumentError(f"unknown collective {unknown[0]!r}: choose from {', '.join(OPS)}")
    how = [_HOW, *[_LATE] * late, *[_HOSTS] * bool(hosts)]
    run = begin("Speed of collectives", *how, code=HOSTS if hosts else ENGINE)
    session = Session(Plan(ops, [parse_bytes(size) for size in sizes.split(",") if size], late, mpi, seconds, rounds))
    for place in places(ranks, hosts, rates, busy):
        session.run(place)
    run.how += session.notes
    run.tables.append(session.table())
    hand_in(run, output)
    if session.wrong:
        raise SystemExit(f"{session.wrong} elements were wrong: this benchmark has failed")


if __name__ == "__main__":
    typer.run(bench)
