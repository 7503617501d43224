"""Steps of a server that decodes: compute, agree on a few numbers, compute; our backend beside Gloo.

    python -m benchmarks.serving

Servers of several replicas agree before each step on how many tokens each has: an all_reduce of four int32 per rank, on
the CPU. Contenders take turns in the same processes, on one host and on several that this machine stands for, quiet and
beside processes that compute. A step takes as long as its slowest rank. Steps without a call say what is left to gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer

import unisono
from unisono.schedule import Hosts

from .busy import hogs
from .reports import GLOO, OURS, Output, describe, hand_in, head, p99, table
from .torch_backend.ranks import Groups, two_backends
from .turns import Times, slowest_rank, take_turns

NO_CALL = "no call"
_WIDTH = 256

_HOW = f"""\
A step is a product of two {_WIDTH} × {_WIDTH} matrices of float32 on one thread, an `all_reduce` of four int32 per
rank, and such a product again. Contenders take turns in the same processes; a turn is one step, behind two that are not
timed and a barrier. {NO_CALL}: the step without the `all_reduce`, in which ranks do not wait for each other. Hosts are
processes of this machine that share no memory and have connections over loopback: a real network adds its own time to
both. A hog is a process that computes all the time."""
_FIGURES = "Milliseconds of a step: median (99th percentile). The last column is how many times as long Gloo takes."


def measure(groups: Groups, neighbours: int, turns: int) -> Times:
    numbers = torch.zeros(4 * unisono.get_world_size(), dtype=torch.int32)
    left, right = torch.rand(2, _WIDTH, _WIDTH)
    out = torch.empty(_WIDTH, _WIDTH)

    def step(group: Any) -> None:
        torch.mm(left, right, out=out)
        if group is not None:
            dist.all_reduce(numbers, group=group)
        torch.mm(left, right, out=out)

    calls = {name: partial(step, group) for name, group in {**groups.contenders, NO_CALL: None}.items()}
    with hogs(neighbours if groups.meet.rank == 0 else 0):
        return take_turns(calls, groups.meet, turns, 0.0)


def serving_markdown(machine: Mapping[str, str], results: Mapping[tuple[str, int], Times]) -> list[str]:
    """The report. results: by where the ranks are, and the number of hogs."""
    rows = []
    for (where, count), times in results.items():
        names = OURS, GLOO, NO_CALL
        cells = [f"{median(times[name]) * 1e3:.2f} ({p99(times[name]) * 1e3:.2f})" for name in names]
        ratio = f"{median(times[GLOO]) / median(times[OURS]):.2f} ({p99(times[GLOO]) / p99(times[OURS]):.2f})"
        rows.append([where, f"{count}", *cells, ratio])
    lines = head("Steps of a server that decodes: our backend beside Gloo", machine, _HOW, _FIGURES)
    return lines + table(["", "hogs", OURS, GLOO, NO_CALL, "Gloo / ours"], rows)


def bench_serving(
    *,
    shapes: Annotated[str, typer.Option(help="Hosts x ranks of each.")] = "1x2,1x4,2x1,2x2",
    neighbours: Annotated[str, typer.Option(help="Numbers of hogs.")] = "0,2",
    turns: Annotated[int, typer.Option(min=2, help="How often each contender has its turn.")] = 400,
    output: Output = None,
) -> None:
    """Measure steps of a server over our backend and over Gloo."""
    machine, results = describe(), dict[tuple[str, int], Times]()
    for shape in shapes.split(","):
        hosts = Hosts.parse(shape)
        apart = None if len(hosts.members) == 1 else hosts.text
        where = f"{hosts.ranks} ranks on {'one host' if apart is None else f'{len(hosts.members)} hosts'}"
        with two_backends(hosts.ranks, apart) as run:
            for count in map(int, neighbours.split(",")):
                results[where, count] = slowest_rank(run(measure, count, turns))
    hand_in(serving_markdown(machine, results), output)


if __name__ == "__main__":
    typer.run(bench_serving)
