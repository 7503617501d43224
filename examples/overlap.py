"""Communicate while computing: async_op=True starts an all_reduce in the background and returns a handle at once.

The rank continues to compute, and calls wait() before it uses the tensor. Two ranks sum their gradients during a matrix
product, as a training step sends the gradients of one layer while it computes those of the next. This saves time only
if a processor is free to copy the bytes.

    python examples/overlap.py
"""

from __future__ import annotations

import os
import time
from statistics import median

import torch

import unisono

RANKS, COUNT, SIZE, REPEATS = 2, 1 << 22, 512, 15


def work() -> dict[str, float]:
    """Time both in turns; return the median seconds of each, and how often the sum was ready before the product."""
    rank = unisono.get_rank()
    gradient = torch.empty(COUNT)
    matrix = torch.randn(SIZE, SIZE)
    seconds: dict[str, list[float]] = {"one after the other": [], "both at once": []}
    ready_first = 0
    for _ in range(REPEATS):
        for way, times in seconds.items():
            gradient.fill_(rank + 1)
            unisono.barrier()  # so that no rank's clock starts early
            start = time.perf_counter()
            if way == "both at once":
                pending = unisono.all_reduce(gradient, async_op=True)
                product = matrix @ matrix  # anything that leaves the gradient alone
                ready_first += pending.is_completed()
                pending.wait()  # from here on the gradient is the sum
            else:
                unisono.all_reduce(gradient)
                product = matrix @ matrix
            times.append(time.perf_counter() - start)
            if not (gradient == 3).all() or not torch.equal(product, matrix @ matrix):
                raise ArithmeticError(f"rank {rank}: wrong result, {way}")
    return {way: median(times) for way, times in seconds.items()} | {"ready first": ready_first}


results = unisono.run(work, ranks=RANKS)
after, both = (max(result[way] for result in results) for way in ("one after the other", "both at once"))
print(f"all_reduce of {COUNT * 4 >> 20} MiB, and a product of {SIZE} x {SIZE} matrices, on {RANKS} ranks")
print(f"one after the other {after * 1000:.1f} ms, both at once {both * 1000:.1f} ms: {after / both:.2f} times as fast")
print(f"in {results[0]['ready first']} of {REPEATS} cases the sum was ready before the product")
print(f"{len(os.sched_getaffinity(0))} processors for {RANKS} ranks that compute, each with a thread that communicates")
