"""What many small tensors cost: a call for each, one call for all, and one call on the tensor that they share.

python -m benchmarks.small_calls
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import typer

import unisono

from .runs import ENGINE, OURS, Output, begin, hand_in, of_times
from .turns import Times

CALLS, TENSORS = 2000, 100


def timed(call: Callable[[], Any]) -> Times:
    """Seconds of many calls on this rank, each after a barrier."""
    times = []
    for _ in range(CALLS):
        unisono.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return {OURS: times}


def work() -> dict[str, Times]:
    small = [torch.ones(256) for _ in range(TENSORS)]  # 1 KiB each
    large, views = torch.ones(256 * TENSORS), [torch.ones(256) for _ in range(TENSORS)]
    (flat,) = unisono.flatten_(views)
    cases: dict[str, Callable[[], Any]] = {
        "100 calls of all_reduce, 1 KiB": lambda: [unisono.all_reduce(tensor, "max") for tensor in small],
        "all_reduce_coalesced, 100 x 1 KiB": lambda: unisono.all_reduce_coalesced(small, "max"),
        "all_reduce, 100 KiB": lambda: unisono.all_reduce(large, "max"),
        "all_reduce of 100 x 1 KiB, flatten_ed": lambda: unisono.all_reduce(flat, "max"),
    }
    return {name: timed(call) for name, call in cases.items()}


def small_calls(*, output: Output = None) -> None:
    """Measure many small tensors on two and four ranks, one by one and together."""
    run = begin("Many small tensors", "Times are of rank 0, after a barrier.", code=ENGINE)
    found = {(ranks, name): times for ranks in (2, 4) for name, times in unisono.run(work, ranks=ranks)[0].items()}
    run.tables.append(of_times("calls", ["ranks", "call"], found))
    hand_in(run, output)


if __name__ == "__main__":
    typer.run(small_calls)
