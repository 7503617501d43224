"""What small calls and messages cost on two and four ranks, and what many small tensors cost in one call.

    python -m benchmarks.small_calls

Times are of rank 0, after a barrier, in microseconds: the median and the least of many calls.
"""

from __future__ import annotations

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
    p, me = unisono.get_world_size(), unisono.get_rank()
    root = me == 0
    two, whole, blocks = torch.ones(2), torch.ones(2 * p), [torch.ones(2) for _ in range(p)]
    small = [torch.ones(256) for _ in range(TENSORS)]  # 1 KiB each
    large, views = torch.ones(256 * TENSORS), [torch.ones(256) for _ in range(TENSORS)]
    (flat,) = unisono.flatten_(views)
    long = torch.ones(1 << 14)

    def there_and_back(tensor: torch.Tensor) -> None:
        for sender in (0, 1):
            if me == sender:
                unisono.send(tensor, 1 - me)
            elif me == 1 - sender:
                unisono.recv(tensor, sender)

    cases: dict[str, Callable[[], Any]] = {
        "all_reduce, 8 B": lambda: unisono.all_reduce(two),
        "broadcast, 8 B": lambda: unisono.broadcast(two, 0),
        "all_gather_single, 8 B": lambda: unisono.all_gather_single(whole, two),
        "reduce_scatter_single, 8 B": lambda: unisono.reduce_scatter_single(two, whole),
        "all_gather of a list, 8 B": lambda: unisono.all_gather(blocks, two),
        "gather of a list, 8 B": lambda: unisono.gather(two, blocks if root else None),
        "barrier": unisono.barrier,
        "all_reduce, 100 KiB": lambda: unisono.all_reduce(large, "max"),
        "all_reduce_coalesced, 100 x 1 KiB": lambda: unisono.all_reduce_coalesced(small, "max"),
        "all_reduce of 100 x 1 KiB, flatten_ed": lambda: unisono.all_reduce(flat, "max"),
        "100 calls of all_reduce, 1 KiB": lambda: [unisono.all_reduce(tensor, "max") for tensor in small],
        "send and recv, there and back, 8 B": lambda: there_and_back(two),
        "send and recv, there and back, 64 KiB": lambda: there_and_back(long),
    }
    return {name: timed(call) for name, call in cases.items()}


if __name__ == "__main__":
    for ranks in (2, 4):
        print(f"{ranks} ranks{'':34}median   least")
        for name, (usual, least) in unisono.run(work, ranks=ranks)[0].items():
            print(f"  {name:38}{usual:8.2f}{least:8.2f}")
