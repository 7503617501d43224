"""What lanes are worth: calls on shared tensors with one lane and with several, in turns.

    python -m benchmarks.lanes --ranks 2 --lanes 2

A rank rewrites its tensor before each call, and the ranks meet. They wait for moments in which the processors are idle.
Prints milliseconds of the slowest rank: the median and the least.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
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
MOST, PAUSE_S = 60, 0.04
"""The most calls with as many lanes; how long the ranks look whether the processors are idle."""


def idle() -> float:
    """The share of the processors' time that nothing uses, in the next PAUSE_S."""

    def read() -> tuple[int, int]:
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return ticks[3], sum(ticks)

    before = read()
    time.sleep(PAUSE_S)
    after = read()
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def work(name: str, nbytes: int, lanes: int, least_idle: float, seconds: float) -> list[list[float]]:
    """The seconds of each call with one lane, then with `lanes`."""
    group, tensor, times = unisono.init(), unisono.empty(nbytes // 4), [list[float](), list[float]()]
    go, end = torch.zeros(1, dtype=torch.int64), time.perf_counter() + seconds
    while True:
        quiet = idle() >= least_idle
        go[0] = -1 if time.perf_counter() > end or len(times[0]) == MOST else quiet
        unisono.broadcast(go, 0)
        if go < 0:
            return times
        for which in (0, 1) if go else ():
            group.host.config = group.host.config.replace(lanes=(1, lanes)[which], lane_bytes=0)
            forget_plans(group)
            for call in range(2):  # the first one plans, and starts threads
                tensor.fill_(float(unisono.get_rank() + call))
                unisono.barrier()
                begin = time.perf_counter()
                CALLS[name](tensor)
                took_s = time.perf_counter() - begin
            times[which].append(took_s)


def main(
    ranks: Annotated[int, typer.Option(help="How many.")] = 2,
    lanes: Annotated[int, typer.Option(help="The most lanes of a rank.")] = 2,
    mebibytes: Annotated[str, typer.Option(help="Sizes of the tensor.")] = "16,32,64,256",
    least_idle: Annotated[float, typer.Option(help="Wait until this share of the processors is idle.")] = 0.75,
    seconds: Annotated[float, typer.Option(help="For each call and size, at most.")] = 10.0,
) -> None:
    """Print a table."""
    typer.echo(f"{'call':12}{'MiB':>5}{'one lane, ms':>16}{f'{lanes} lanes, ms':>16}   part of the time")
    for name in CALLS:
        for size in map(int, mebibytes.split(",")):
            found = unisono.run(work, ranks, (name, size << 20, lanes, least_idle, seconds))
            one, many = ([max(call) for call in zip(*(times[k] for times in found), strict=True)] for k in (0, 1))
            if not one:
                typer.echo(f"{name:12}{size:5}  the processors have not been idle")
                continue
            cells = "".join(f"{figure(column) * 1e3:8.2f}" for column in (one, many) for figure in (median, min))
            typer.echo(f"{name:12}{size:5}{cells}{median(many) / median(one):10.2f}{min(many) / min(one):7.2f}")


if __name__ == "__main__":
    typer.run(main)
