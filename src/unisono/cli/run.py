"""`unisono run`: a script on several ranks of this host."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ArgumentError
from ..local_world.script import run_script

__all__ = ["run"]

_RANKS = ("-n", "--ranks")


def run(
    script: Annotated[str, typer.Argument(help="A Python file.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For the script, as they are; a -n directly after it is ours.")
    ] = None,
    ranks: Annotated[int, typer.Option(*_RANKS, help="How many processes.")] = 4,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the script may take.")] = None,
    prefix: Annotated[bool, typer.Option(help="Print [rank 2] before each line of rank 2.")] = True,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Failures do not end the other ranks.")] = False,
) -> None:
    """Run a script on several processes of this host, without a port, as torchrun would.

    unisono.init() and torch.distributed.init_process_group() both find the other ranks. The exit status is not zero
    where a rank failed, or with --keep-going where all did; its traceback is shown.
    """
    rest = arguments or []
    if rest and rest[0] in _RANKS:  # unisono run script.py -n 4
        if len(rest) < 2 or not rest[1].isdecimal():
            raise ArgumentError(f"{rest[0]} needs a number of processes: unisono run {script} {rest[0]} 4")
        ranks, rest = int(rest[1]), rest[2:]
    outcomes = run_script(script, rest, ranks, timeout_s=timeout, prefix=prefix, return_exceptions=keep_going)
    failures = list(filter(None, outcomes))
    for error in failures:
        typer.secho(f"unisono: {error}", err=True, fg="red")
    if len(failures) == ranks:
        raise typer.Exit(1)
