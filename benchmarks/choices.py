"""What the rule chooses for all_reduce on one host, what prices would, and the best of all algorithms, measured.

    python -m benchmarks.choices --ranks 2,4 --sizes 8,1KiB,4KiB,8KiB,16KiB,64KiB,1MiB,16MiB

Prices are made of what `unisono tune` has found on this machine, or else of a calibration before. All algorithms of the
catalogue take turns; the least time of a call counts, and where ranks outnumber processors the median. What is printed
is the time of what was chosen over that of the best, which is 1.00 for the best itself.
"""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from typing import Annotated

import typer

import unisono
from unisono.base.tuning import HostCosts, measured
from unisono.base.units import format_bytes, format_seconds, parse_bytes
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.choose import choose, is_oversubscribed
from unisono.schedule.simulate import price_here
from unisono.tools.cli.tune.timed_here import host_costs, least_times

from .machine import LOAD, describe, load, vendor_path

__all__ = ["bench_choices", "choices"]


def choices(ranks: int, nbytes: int, costs: HostCosts) -> tuple[str, str]:
    """What the rule chooses, and what has the least price."""
    segment_bytes = unisono.Config.from_env().segment_bytes
    able = [some for some in CATALOGUE.values() if some.collective == "all_reduce" and some.allows(ranks)]
    cheapest = min(able, key=lambda some: price_here(some, ranks, nbytes, costs, segment_bytes).seconds)
    return choose(
        "all_reduce", nbytes, ranks, oversubscribed=is_oversubscribed(ranks)
    ).algorithm.full_name, cheapest.full_name


def _row(nbytes: int, times: dict[str, float], chosen: tuple[str, str]) -> tuple[str, list[float]]:
    best = min(times, key=times.__getitem__)
    ratios = [times[name] / times[best] for name in chosen]
    cells = [f"{name.partition('.')[2]} {ratio:.2f}" for name, ratio in zip(chosen, ratios, strict=True)]
    best_cell = f"{best.partition('.')[2]} {format_seconds(times[best])}"
    return f"| {' | '.join([format_bytes(nbytes), *cells, best_cell])} |", ratios


def bench_choices(
    *,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,4,8",
    sizes: Annotated[str, typer.Option(help="Bytes of the vector.")] = "8,512,2KiB,4KiB,8KiB,16KiB,64KiB,1MiB,16MiB",
    seconds: Annotated[float, typer.Option(help="For the calls of one size, besides warming up.")] = 2.0,
    output: Annotated[str, typer.Option(help="Write the report there, too.")] = "",
) -> None:
    """Print a table for each number of ranks."""
    found = measured()
    costs = found.costs if found else None
    if costs is None:
        with unisono.world(2, timeout_s=300) as world:
            costs = host_costs(world, 4.0, lambda _done: None)
    report = ["# The rule, prices, and the best", "", *(f"- {name}: {value}" for name, value in describe().items())]
    report += [f"- {LOAD}: {load()}", f"- prices of: {costs}"]
    for count in map(int, ranks.split(",")):
        able = [name for name, a in CATALOGUE.items() if a.collective == "all_reduce" and a.allows(count)]
        report += ["", f"## {count} ranks", "", "| vector | rule | price | best |", "| --- | --- | --- | --- |"]
        of_all: list[list[float]] = []
        with unisono.world(count, timeout_s=300) as world:
            for nbytes in map(parse_bytes, sizes.split(",")):
                times = dict(zip(able, least_times(world, able, nbytes, seconds), strict=True))
                line, ratios = _row(nbytes, times, choices(count, nbytes, costs))
                report.append(line)
                of_all.append(ratios)
        means = [exp(sum(map(log, ratios)) / len(ratios)) for ratios in zip(*of_all, strict=True)]
        report += ["", f"Geometric means: rule {means[0]:.2f}, price {means[1]:.2f}."]
    print("\n".join(report), flush=True)
    if output:
        vendor_path(Path(output)).write_text("\n".join(report) + "\n")


if __name__ == "__main__":
    typer.run(bench_choices)
