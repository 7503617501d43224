"""`unisono run`: a script on several ranks of this host."""

from typing import Annotated, Any

import typer

from ...base.errors import ArgumentError
from ...ranks.launch.worlds import run_script
from .shared.printing import compile_first

_RANKS = ("-n", "--ranks")


def run(
    script: Annotated[str, typer.Argument(help="A Python file.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script; a -n directly after its name is for unisono.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(*_RANKS, help="Number of ranks. Default: 4, or that of --hosts.", show_default=False)
    ] = None,
    hosts: Annotated[str | None, typer.Option(help="Hosts to simulate: 2x2, or 3+1.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that the script may take.")] = None,
    prefix: Annotated[bool, typer.Option(help=r"Print \[rank 2] before each line of rank 2.")] = True,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Do not end the other ranks when one fails.")
    ] = False,
) -> None:
    """Run a script on several processes of this host, without a port, as torchrun would.

    unisono.init() and torch.distributed.init_process_group() both find the other ranks. The exit status is not zero if
    a rank failed, or with --keep-going if all ranks failed. The traceback of the failure is shown.
    """
    rest = arguments or []
    name, _, number = rest[0].partition("=") if rest else ("", "", "")
    if name in _RANKS:  # unisono run script.py -n 4
        rest = rest[1:] if number else rest[2:]
        number = number or "".join((arguments or [])[1:2])
        if not number.isdecimal():
            raise ArgumentError(f"{name} needs a number of processes. Run: unisono run {script} {name} 4.")
        ranks = int(number)
    compile_first()
    options: dict[str, Any] = {"hosts": hosts, "timeout_s": timeout, "prefix": prefix, "return_exceptions": keep_going}
    outcomes = run_script(script, rest, ranks, **options)
    failures = list(filter(None, outcomes))
    for error in failures:
        typer.secho(f"unisono: {error}", err=True, fg="red")
    if len(failures) == len(outcomes):
        raise typer.Exit(1)
