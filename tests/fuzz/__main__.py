"""Random programs for some time, and the smallest program of the first one that goes wrong.

    python -m tests.fuzz --seconds 300 --seed 7 --hosts 2x2,3+1

draws the same programs for the same seed. What it prints of a program that goes wrong is a script that runs it.
"""

import secrets
import time
from functools import partial
from typing import Annotated

import typer

from tests.fuzz.draw import HOSTS, Session
from tests.fuzz.programs import Program, shown, shrink, simpler
from tests.fuzz.worlds import Worlds

PROGRAMS = 25  # in one world
TRIES = 3  # how often a program runs in a new world before it counts as right: some faults are races
SHRINK_S = 60.0


def script(program: Program) -> str:
    """A program as a script that runs it."""
    return f"from tests.fuzz.programs import *\nfrom tests.fuzz.worlds import check\n\ncheck({shown(program)})\n"


def minimal(program: Program, past: list[Program], limit_s: float) -> tuple[Program, str]:
    """A smaller program that goes wrong in a new world, and a word on it."""
    last: list[str] = []
    steps = tuple(step for one in past for step in one.steps)
    together = Program(program.hosts, steps, program.settings, program.api)
    with Worlds(limit_s) as worlds:

        def fails(candidate: Program, tries: int) -> bool:
            for _ in range(tries):
                worlds.renew()
                if wrong := worlds.run(candidate):
                    last[:] = wrong
                    return True
            return False

        for start, word in ((program, ""), (together, "Only after the programs before it:")):
            worlds.limit_s = limit_s * (1 if start is program else len(past))
            if fails(start, TRIES):
                tries = 1 if fails(start, 1) and fails(start, 1) else TRIES
                least = shrink(start, simpler, partial(fails, tries=tries), time.monotonic() + SHRINK_S)
                return least, "\n".join([word, *last]).strip()
    return program, f"not again in {TRIES} runs"


def main(
    seconds: float = 300.0,
    seed: Annotated[str, typer.Option(help="Of the programs; drawn, if not given.")] = "",
    hosts: Annotated[str, typer.Option(help="Worlds, as Hosts.parse reads them.")] = ",".join(HOSTS),
    limit_s: Annotated[float, typer.Option(help="How long a program may take.")] = 60.0,
) -> None:
    """Run programs for some seconds; exit with 1 if one goes wrong."""
    seed = seed or secrets.token_hex(3)
    typer.echo(f"seed {seed}")
    until, ran, number, wrong = time.monotonic() + seconds, 0, 0, list[str]()
    with Worlds(limit_s) as worlds:
        while time.monotonic() < until and not wrong:
            session = Session(f"{seed} {number}", tuple(hosts.split(",")))
            number += 1
            worlds.renew()
            for _ in range(PROGRAMS):
                program = session.program()
                ran += 1
                if wrong := worlds.run(program):
                    typer.echo("\n".join(["", f"seed {seed} {number - 1}:", *(text[:1500] for text in wrong)]))
                    least, word = minimal(program, worlds.past, limit_s / 2)
                    typer.echo(f"\nThe smallest program found:\n\n{script(least)}\n{word[:3000]}")
                if wrong or time.monotonic() > until:
                    break
    typer.echo(f"{ran} programs in {number} worlds with seed {seed}")
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
