"""Random programs for some time, and the smallest program of the first one that goes wrong.

    python -m tests.fuzz --seconds 300 --seed 7 --hosts 2x2,3+1

draws the same programs for the same seed. What it prints of a program that goes wrong is a script that runs it.
"""

import re
import secrets
import time
from functools import partial
from typing import Annotated

import typer

from tests.fuzz.draw import HOSTS, Session
from tests.fuzz.programs import Program, shown
from tests.fuzz.shrink import shrink
from tests.fuzz.worlds import Worlds

PROGRAMS = 25  # in one world
TRIES = 3  # how often a program runs in a new world before it counts as right: some faults are races
SHRINK_S = 60.0


def script(program: Program) -> str:
    """A program as a script that runs it."""
    return f"from tests.fuzz.programs import *\nfrom tests.fuzz.worlds import check\n\ncheck({shown(program)})\n"


def minimal(program: Program, past: list[Program], known: str, limit_s: float) -> tuple[Program, str]:
    """A smaller program that goes wrong in a new world, in a way that is not known, and a word on it."""
    last: list[str] = []
    steps = tuple(step for one in past for step in one.steps)
    together = Program(program.hosts, steps, program.settings, program.api)
    with Worlds(limit_s) as worlds:

        def fails(candidate: Program, tries: int) -> bool:
            for _ in range(tries):
                worlds.renew()
                if new(wrong := worlds.run(candidate), candidate, known):
                    last[:] = wrong
                    return True
            return False

        for start, word in ((program, ""), (together, "Only after the programs before it:")):
            worlds.limit_s = limit_s * (1 if start is program else len(past))
            if fails(start, TRIES):
                tries = 1 if fails(start, 1) and fails(start, 1) else TRIES
                least = shrink(start, partial(fails, tries=tries), time.monotonic() + SHRINK_S)
                return least, "\n".join([word, *last]).strip()
    return program, f"not again in {TRIES} runs"


def new(wrong: list[str], program: Program, known: str) -> bool:
    """Has something gone wrong, in a way that is not known?"""
    return bool(wrong) and not re.search(known, "\n".join([*wrong, shown(program)]))


def kind(wrong: list[str]) -> str:
    """What went wrong without numbers, so that two findings of one cause look alike."""
    return re.sub(r"(seed|n|root|tag|shift)=\d+|rank \d+|\d+", "", "\n".join(wrong))[:300]


def main(
    seconds: float = 300.0,
    seed: Annotated[str, typer.Option(help="Of the programs; drawn, if not given.")] = "",
    hosts: Annotated[str, typer.Option(help="Worlds, as Hosts.parse reads them.")] = ",".join(HOSTS),
    go_on: Annotated[bool, typer.Option(help="After a program that goes wrong, too.")] = False,
    known: Annotated[str, typer.Option(help="A pattern: failures in whose text or program it is do not count.")] = "$^",
    limit_s: Annotated[float, typer.Option(help="How long a program may take.")] = 60.0,
) -> None:
    """Run programs for some seconds; exit with 1 if one goes wrong."""
    seed = seed or secrets.token_hex(3)
    typer.echo(f"seed {seed}")
    until, ran, number, found = time.monotonic() + seconds, 0, 0, set[str]()
    with Worlds(limit_s) as worlds:
        while time.monotonic() < until and (go_on or not found):
            session = Session(f"{seed} {number}", tuple(hosts.split(",")))
            number += 1
            worlds.renew()
            for _ in range(PROGRAMS):
                program = session.program()
                ran += 1
                wrong = worlds.run(program)
                if new(wrong, program, known) and kind(wrong) not in found:
                    found.add(kind(wrong))
                    typer.echo("\n".join(["", f"seed {seed} {number - 1}:", *(text[:1500] for text in wrong)]))
                    least, word = minimal(program, worlds.past, known, limit_s / 2)
                    typer.echo(f"\nThe smallest program found:\n\n{script(least)}\n{word[:3000]}")
                if wrong or time.monotonic() > until:
                    break
    typer.echo(f"{ran} programs in {number} worlds with seed {seed}, {len(found)} kinds of failures")
    raise typer.Exit(bool(found))


if __name__ == "__main__":
    typer.run(main)
