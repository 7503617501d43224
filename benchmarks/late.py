"""Ranks that do not arrive together: from the last rank's call until all ranks are out; our backend beside Gloo.

    python -m benchmarks.late

Ranks take turns in being late. A rank that is late sleeps, so it computes nothing meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from itertools import product
from statistics import mean, median, quantiles
from typing import Annotated

import torch
import torch.distributed as dist
import typer

from unisono.base.units import format_bytes, format_seconds, parse_bytes

from .busy import hogs
from .reports import Output, describe, hand_in, head, ours_beside_gloo
from .torch_backend.ranks import Groups, two_backends
from .turns import Times

LATE_S = (0.0, 0.5e-3, 3e-3, 20e-3)

_HOW = """\
float32, `dist.all_reduce`. Behind a barrier that belongs to no contender, one rank sleeps for so long, and then calls;
the others have called before. A figure is the time from its call until the last rank is out: ours / Gloo, and how many
times as long Gloo takes. Contenders take turns in the same processes. A hog is a process that computes all the time."""

Span = tuple[float, float]
"""When a rank made a call, and when it was out, in seconds on the clock of all processes."""


def measure(groups: Groups, nbytes: int, late_s: float, neighbours: int, turns: int) -> dict[str, list[Span]]:
    """The calls of this rank, by contender."""
    tensor, meet = torch.zeros(nbytes // 4), groups.meet
    spans: dict[str, list[Span]] = {who: [] for who in groups.contenders}
    with hogs(neighbours if meet.rank == 0 else 0):
        for turn, (who, group) in product(range(turns), groups.contenders.items()):
            meet.barrier()
            if late_s and turn % meet.ranks == meet.rank:
                time.sleep(late_s)
            began = time.monotonic()
            dist.all_reduce(tensor, group=group)
            spans[who].append((began, time.monotonic()))
    return spans


def until_all_are_out(ranks: list[dict[str, list[Span]]]) -> Times:
    """Seconds from the last call of each turn until all ranks are out."""
    return {
        who: [
            max(out for _, out in turn) - max(began for began, _ in turn)
            for turn in zip(*(of[who] for of in ranks), strict=True)
        ]
        for who in ranks[0]
    }


def late_markdown(machine: Mapping[str, str], results: Mapping[tuple[int, int, float, int], Times]) -> list[str]:
    """The report. results: by ranks, bytes, lateness and number of hogs."""
    numbers = list(dict.fromkeys(key[-1] for key in results))
    rows = {
        f"{ranks} ranks, {format_bytes(nbytes)}, {f'one {format_seconds(late_s)} late' if late_s else 'in step'}": [
            results[ranks, nbytes, late_s, count] for count in numbers
        ]
        for ranks, nbytes, late_s, _ in results
    }
    figures = {
        "Medians": median,
        "90 % of the calls take at most": lambda times: quantiles(times, n=10)[-1],
        "Means": mean,
    }
    lines = head("Ranks that do not arrive together: our backend beside Gloo", machine, _HOW)
    return lines + ours_beside_gloo(["", *(f"{count} hogs" for count in numbers)], rows, figures)


def bench_late(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4,8",
    sizes: Annotated[str, typer.Option(help="Bytes of the all_reduce.")] = "8,256KiB",
    neighbours: Annotated[str, typer.Option(help="Numbers of hogs.")] = "0,2",
    turns: Annotated[int, typer.Option(min=2, help="How often each contender has its turn.")] = 60,
    output: Output = None,
) -> None:
    """Measure all_reduce on ranks of one host of which one is late, beside Gloo."""
    machine, results = describe(), dict[tuple[int, int, float, int], Times]()
    for number in map(int, ranks.split(",")):
        with two_backends(number) as run:
            for nbytes, late_s, count in product(
                map(parse_bytes, sizes.split(",")), LATE_S, map(int, neighbours.split(","))
            ):
                timed = partial(run, measure, nbytes, late_s, count)
                timed(4)
                results[number, nbytes, late_s, count] = until_all_are_out(timed(turns))
    hand_in(late_markdown(machine, results), output)


if __name__ == "__main__":
    typer.run(bench_late)
