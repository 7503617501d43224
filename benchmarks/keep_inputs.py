"""What `Config.keep_inputs` costs: all_reduce in place, with it and without, in turns.

    python -m benchmarks.keep_inputs

Two worlds are there at the same time, one with the setting; while one has its turn, the other sleeps. A turn is a batch
of calls, back to back, and the slower rank's time counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Annotated

import torch
import typer

import unisono
from unisono.base.units import format_bytes, format_seconds, parse_bytes

from .machine import LOAD, describe, load

__all__ = ["bench_keep_inputs"]

_TURN_S, _MOST = 0.01, 1000


def _turn(nbytes: int) -> float:
    """Seconds per call on this rank."""
    tensor = torch.zeros(nbytes // 4)
    unisono.all_reduce(tensor)
    began = time.perf_counter()
    unisono.all_reduce(tensor)
    calls = torch.tensor([min(_MOST, 1 + int(_TURN_S / (time.perf_counter() - began)))])
    unisono.broadcast(calls, 0)
    unisono.barrier()
    began = time.perf_counter()
    for _ in range(int(calls)):
        unisono.all_reduce(tensor)
    return (time.perf_counter() - began) / int(calls)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def bench_keep_inputs(
    *,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of each world.")] = 2,
    sizes: Annotated[str, typer.Option(help="Bytes of the tensor.")] = "8,64KiB,1MiB,16MiB",
    turns: Annotated[int, typer.Option(min=1, help="How often each has its turn.")] = 51,
) -> None:
    """Print a table: the median of the turns, and the best one, which other processes disturb least."""
    for name, value in {**describe(), LOAD: load()}.items():
        print(f"- {name}: {value}")
    figures = ["without", "with keep_inputs", "times as long"]
    print("\n" + _row([f"all_reduce in place, {ranks} ranks", *figures, *(f"{figure}, least" for figure in figures)]))
    print(_row(["---"] * 7))
    keeps = replace(unisono.Config.from_env(), keep_inputs=1)
    with unisono.world(ranks) as without, unisono.world(ranks, config=keeps) as with_it:
        for nbytes in map(parse_bytes, sizes.split(",")):
            times = [(max(without.run(_turn, nbytes)), max(with_it.run(_turn, nbytes))) for _ in range(turns)]
            cells = [format_bytes(nbytes)]
            for figure in (median, min):
                plain, kept = (figure(each) for each in zip(*times, strict=True))
                cells += [format_seconds(plain), format_seconds(kept), f"{kept / plain:.2f}"]
            print(_row(cells))


if __name__ == "__main__":
    typer.run(bench_keep_inputs)
