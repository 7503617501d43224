"""Random programs, scenes of deaths or reconfigured groups for some time, and what goes wrong as a script, made small.

    python -m tests.fuzz programs --seconds 300 --seed 7
    python -m tests.fuzz deaths
    python -m tests.fuzz reconfigures

draws the same for the same seed.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import typer

from tests.fuzz import deaths, reconfigures, worlds

TRIES = 3  # runs in which a program must pass before it counts as right: some faults are races
SMALLER_S = 120.0


class Engine(NamedTuple):
    """How one kind of thing is drawn and tried, without end.

    run: yields the things that ran, the last one alone and with those before it, and what is wrong with it.
    watch: runs one again. parts: the fields from which the search for a smaller one may drop items.
    """

    run: Callable[[str], Iterator[tuple[list[Any], list[str]]]]
    watch: Callable[[Any], list[str]] | None = None
    parts: tuple[str, ...] = ()
    script: str = ""


ENGINES = {
    "programs": Engine(
        worlds.draw_and_run,
        worlds.watch,
        ("steps", "settings"),
        "from tests.fuzz.programs import *\nfrom tests.fuzz.worlds import watch",
    ),
    "deaths": Engine(
        deaths.draw_and_run,
        lambda scene: deaths.watch(scene) if all(one.call < len(scene.calls) for one in scene.faults) else [],
        ("faults", "calls"),
        "from tests.fuzz.fault_scene import *\nfrom tests.fuzz.deaths import watch",
    ),
    "reconfigures": Engine(reconfigures.draw_and_run),
}


def simpler(whole: Any, parts: tuple[str, ...]) -> Iterator[Any]:
    """The same with less in one of these fields, much less first."""
    for name in parts if whole else ():
        items = getattr(whole, name)
        width = -(-len(items) // 2)
        while width:
            for at in range(0, len(items), width):
                yield replace(whole, **{name: items[:at] + items[at + width :]})
            width //= 2


def smallest(starts: list[Any], engine: Engine) -> Any:
    end = time.monotonic() + SMALLER_S

    def fails(one: Any) -> bool:
        return engine.watch is not None and any(engine.watch(one) for _ in range(TRIES))

    least = next(filter(fails, starts), None)
    while found := next((one for one in simpler(least, engine.parts) if time.monotonic() < end and fails(one)), None):
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
    for starts, wrong in engine.run(seed):
        number += 1
        if wrong:
            failed += 1
            print(f"\nnumber {number} of seed {seed} goes wrong:", *(text[:1500] for text in wrong), sep="\n  ")
            least = smallest(starts, engine)
            again = least or starts[0]
            print("\nThe smallest found:" if least else "\nIt does not go wrong again:")
            print(f"{engine.script}\n\nprint(watch({again}))", flush=True)
        if time.monotonic() > end:
            break
    print(f"{number} {what}, of which {failed} went wrong, with seed {seed}")
    raise typer.Exit(failed > 0)


if __name__ == "__main__":
    typer.run(main)
