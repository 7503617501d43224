"""Write an all_reduce as a table of transfers; draw, prove, count and run it.

A table lists which rank sends what to which rank, round by round, for all ranks. It is proved before it runs: a table
that misses a contribution, or adds one twice, raises an error that names the place.

    python examples/own_algorithm.py
    unisono explain examples/own_algorithm.py:line --ranks 4
    unisono draw examples/own_algorithm.py:line --ranks 4 -o line.svg
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import unisono
from unisono.schedule import ADD, count, lower_bounds, prove, send, trace
from unisono.schedule.draw import text

RANKS = 3


@unisono.algorithm("all_reduce", chunks=1)
def line(r: Any, p: int) -> Iterator[Any]:
    """The sum goes up the line of ranks, each adding its own, and comes back down whole."""
    for k in range(p - 1):
        yield send(r[k], r[k + 1], 0, op=ADD)  # from rank, to rank, chunk: here the vector is one chunk
    for k in reversed(range(p - 1)):
        yield send(r[k + 1], r[k], 0)


def forgetful(r: Any, p: int) -> Iterator[Any]:
    """The same with a mistake: the way back is missing."""
    for k in range(p - 1):
        yield send(r[k], r[k + 1], 0, op=ADD)


def work() -> list[float]:
    """Run it on this rank: it is compiled, and proved once more, at the first call."""
    tensor = torch.tensor([1.0, 2.0]) * 10 ** unisono.get_rank()
    unisono.all_reduce(tensor, algorithm=line)
    values: list[float] = tensor.tolist()
    return values


if __name__ == "__main__":  # so that `unisono explain` and `draw` can load this file without running it
    table = trace(line, RANKS, 1, "all_reduce")
    print(text(table))
    print(prove(table))
    try:
        prove(trace(forgetful, RANKS, 1, "all_reduce"))
    except unisono.AlgorithmError as error:
        print(f"Refused: {error}")
    counts, bounds = count(table), lower_bounds("all_reduce", RANKS)
    print(f"rounds: {counts.rounds}, at best {bounds.rounds}; the busiest rank sends {counts.most_sent} of the vector")
    print(unisono.run(work, ranks=RANKS))
