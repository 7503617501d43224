"""What many small tensors cost: a call for each, one call for all, and one call on the tensor that they share.

    python -m benchmarks.small_calls

Times are of rank 0, after a barrier, in microseconds: the median and the least of many calls.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import unisono

CALLS, TENSORS = 2000, 100


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    times = []
    for _ in range(CALLS):
        unisono.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times) * 1e6, min(times) * 1e6


def work() -> dict[str, tuple[float, float]]:
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


if __name__ == "__main__":
    for ranks in (2, 4):
        print(f"{ranks} ranks{'':34}median   least")
        for name, (usual, least) in unisono.run(work, ranks=ranks)[0].items():
            print(f"  {name:38}{usual:8.2f}{least:8.2f}")
