"""`unisono export`: an algorithm as a file of another program."""

from pathlib import Path
from typing import Annotated

import typer

from ...base.config import Config
from ...base.errors import ArgumentError
from ...base.link import Link
from ...base.units import parse_bytes
from ...schedule.exchange import FORMATS, exported
from ...schedule.exchange.goal import parameters
from ...schedule.simulate import Hardware
from .shared.printing import at_work, file_errors
from .shared.target import find_target, ranks_of


def export(
    name: Annotated[str, typer.Argument(help="all_reduce.ring, path/to/file.py:function, or path/to/file.xml")],
    *,
    to: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")],
    ranks: Annotated[int | None, typer.Option(help="Number of ranks. Default: 4, or that of the file.")] = None,
    root: Annotated[int, typer.Option(help="The root rank, for collectives with a root.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; for chakra, the beginning of the names of its files."),
    ] = None,
    nbytes: Annotated[str, typer.Option("--bytes", help="Size of the vector, for simulators.")] = "16MiB",
    link: Annotated[str, typer.Option(help="The network, for goal, such as 1Gbit,100us. Default: UNISONO_LINK.")] = "",
) -> None:
    """Write an algorithm for MSCCL (msccl), LogGOPSim and ATLAHS (goal), or ASTRA-sim (chakra), after its proof."""
    target = find_target(name, ranks_of(name) if ranks is None else ranks, root=root)
    with at_work(f"exporting {target.algorithm.full_name}"):
        network = Link.parse(link) if link else Config.from_env().link
        files = exported(target.schedule, to, parse_bytes(nbytes), network)
    if to == "goal":
        typer.echo(f"LogGOPSim {parameters(Hardware(between=network))}", err=True)
    if output is None:
        if len(files) > 1 or "" not in files:
            raise ArgumentError(f"{to} has one file per rank. Give how their names begin, such as --output ring.")
        typer.echo(files[""], nl=False)
        return
    for end, data in files.items():
        path = Path(f"{output}{end}")
        with file_errors(f"write {path}"):
            path.write_bytes(data)
        typer.echo(f"wrote {path}", err=True)
