"""Every case of the matrix, group size by group size and call by call; what is wrong is listed.

    python -m tests.matrix.full --ranks 2,3 --calls all_reduce,scan --seed 1

goes through a part of it. Sizes, roots and values are drawn from the seed. With `--lanes 1,2,3,8` threads of a rank
share all copies and sums, even short ones: two on rank 1, three on rank 2, and so on, all turned by the seed.
"""

import time
from typing import Annotated

import typer

import unisono
from tests.support.lanes import with_lanes
from tests.support.matrix import FORMS, every
from tests.support.matrix_driver import run_cases


def run_every(form: str, seed: int, lanes: tuple[int, ...]) -> tuple[int, int, list[str]]:
    if lanes:
        with_lanes(lanes[(unisono.get_rank() + seed) % len(lanes)])
    return run_cases(every(form, seed), most=3)


def main(
    ranks: Annotated[str, typer.Option(help="Sizes of the groups.")] = "1,2,3,4,5,7,8",
    calls: Annotated[str, typer.Option(help="The calls.")] = ",".join(FORMS),
    seed: int = 0,
    lanes: Annotated[str, typer.Option(help="How many lanes ranks have, whatever the size of a call.")] = "",
) -> None:
    """Run every case, and print for each call how many there were, how long it took, and what went wrong."""
    lanes_of_ranks = tuple(int(text) for text in lanes.split(",") if text)
    failures, total, start = 0, 0, time.monotonic()
    for size in map(int, ranks.split(",")):
        with unisono.World(size, timeout_s=300) as world:
            for form in calls.split(","):
                begin = time.monotonic()
                results = world.run(run_every, form, seed, lanes_of_ranks)
                made, wrong = (max(column) for column in list(zip(*results, strict=True))[:2])  # on the worst rank
                typer.echo(f"{size} ranks  {form:22}{made:7} cases{time.monotonic() - begin:7.1f} s  {wrong} wrong")
                typer.echo("".join(f"  {text}\n" for _, _, found in results for text in found), nl=False)
                total, failures = total + made, failures + wrong
    typer.echo(f"{total} cases with seed {seed} in {time.monotonic() - start:.0f} s, {failures} wrong")
    raise typer.Exit(failures > 0)


if __name__ == "__main__":
    typer.run(main)
