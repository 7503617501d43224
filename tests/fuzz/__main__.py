"""Random programs, scenes of deaths or reconfigured groups for some time, and what goes wrong as a script, made small.

    python -m tests.fuzz programs --seconds 300 --seed 7
    python -m tests.fuzz deaths
    python -m tests.fuzz reconfigures

draws the same for the same seed.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import typer

from tests.fuzz import deaths, reconfigures, worlds

TRIES = 3  # runs in which a program must pass before it counts as right: some faults are races
SMALLER_S = 120.0

ENGINES: dict[str, Any] = {"programs": worlds, "deaths": deaths, "reconfigures": reconfigures}
"""Modules. draw_and_run(seed): yields without end the things that ran, the last one alone and with those before it, and
what is wrong with it. watch: runs one again. PARTS: the fields from which the search for a smaller one may drop items.
"""


def simpler(whole: Any, parts: tuple[str, ...]) -> Iterator[Any]:
    """The same with less in one of these fields, much less first."""
    for name in parts if whole else ():
        items = getattr(whole, name)
        width = -(-len(items) // 2)
        while width:
            for at in range(0, len(items), width):
                with suppress(ValueError):  # it makes no sense
                    yield replace(whole, **{name: items[:at] + items[at + width :]})
            width //= 2


def smallest(starts: list[Any], engine: Any) -> Any:
    end = time.monotonic() + SMALLER_S

    def fails(one: Any) -> bool:
        return any(engine.watch(one) for _ in range(TRIES))

    least = next(filter(fails, starts), None)
    while found := next((one for one in simpler(least, engine.PARTS) if time.monotonic() < end and fails(one)), None):
        least = found
    return least


def main(
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(ENGINES)}.")],
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    seed: Annotated[str, typer.Option(help="Of the draw; empty: a new one.")] = "",
) -> None:
    """Draw and run for some seconds; exit with 1 if anything goes wrong."""
    engine, seed = ENGINES[what], seed or secrets.token_hex(4)
    print(f"seed {seed}")
    end, number, failed = time.monotonic() + seconds, 0, 0
    for starts, wrong in engine.draw_and_run(seed):
        number += 1
        if wrong:
            failed += 1
            print(f"\nnumber {number} of seed {seed} goes wrong:", *(text[:1500] for text in wrong), sep="\n  ")
            least = smallest(starts, engine)
            again = least or starts[0]
            found = "\nThe smallest found:" if least else "\nIt does not go wrong again:"
            script = (
                f"from {type(again).__module__} import *\nfrom {engine.__name__} import watch\n\nprint(watch({again}))"
            )
            print(found, script, sep="\n", flush=True)
        if time.monotonic() > end:
            break
    print(f"{number} {what}, of which {failed} went wrong, with seed {seed}")
    raise typer.Exit(failed > 0)


if __name__ == "__main__":
    typer.run(main)
