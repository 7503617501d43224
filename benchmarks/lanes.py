"""What lanes are worth: calls on shared tensors with one lane and with several, in turns.

    python -m benchmarks.lanes --ranks 2 --lanes 2

A rank rewrites its tensor before each call, and the ranks meet. Prints milliseconds of the slowest rank: the median and
the lower quartile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import quantiles
from typing import Annotated

import torch
import typer

import unisono
from unisono.calls.dispatch.plan_cache import forget_plans

CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "broadcast": lambda tensor: unisono.broadcast(tensor, 0),
    "reduce": lambda tensor: unisono.reduce(tensor, 0),
    "all_reduce": unisono.all_reduce,
}
TURNS, MOST = 8, 40


def work(name: str, nbytes: int, lanes: int) -> list[list[float]]:
    """The seconds of each call with one lane, then with `lanes`."""
    group, tensor, times = unisono.init(), unisono.empty(nbytes // 4), [list[float](), list[float]()]
    for turn in range(2 * TURNS):
        group.host.config = group.host.config.but(lanes=(1, lanes)[turn % 2], lane_bytes=0)
        forget_plans(group)
        for call in range(min(MOST, (1 << 30) // nbytes) + 2):
            tensor.fill_(float(unisono.get_rank() + call))
            unisono.barrier()
            begin = time.perf_counter()
            CALLS[name](tensor)
            if call >= 2:  # the first ones plan, and start threads
                times[turn % 2].append(time.perf_counter() - begin)
    return times


def main(
    ranks: Annotated[int, typer.Option(help="How many.")] = 2,
    lanes: Annotated[int, typer.Option(help="The most lanes of a rank.")] = 2,
    mebibytes: Annotated[str, typer.Option(help="Sizes of the tensor.")] = "4,16,64,256",
) -> None:
    """Print a table."""
    typer.echo(f"{'call':12}{'MiB':>5}   one lane, ms   {lanes} lanes, ms   part of the time")
    for name in CALLS:
        for size in map(int, mebibytes.split(",")):
            found = unisono.run(work, ranks, (name, size << 20, lanes))
            shown = []
            for column in range(2):
                slowest = list(map(max, *(times[column] for times in found))) if ranks > 1 else found[0][column]
                quarter, middle, _ = quantiles(slowest, n=4)
                shown.append((middle * 1e3, quarter * 1e3))
            (one, one_low), (many, many_low) = shown
            cells = f"{one:8.2f}{one_low:8.2f}{many:8.2f}{many_low:8.2f}"
            typer.echo(f"{name:12}{size:5}{cells}{many / one:10.2f}{many_low / one_low:7.2f}")


if __name__ == "__main__":
    typer.run(main)
