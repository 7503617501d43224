"""What the six basic collectives do: what four ranks hold before each call, and what they hold after it.

Two add (reduce, all_reduce), four only move. `all_` says that every rank gets the result, and not rank 0 alone.

    python examples/six_collectives.py
"""

from __future__ import annotations

import torch

import unisono

RANKS = 4


def work() -> dict[str, tuple[list[int], list[int]]]:
    """Make all six calls on this rank; return what it held before and after each, by the name of the call."""
    rank = unisono.get_rank()
    root = rank == 0
    mine = torch.tensor([10**rank])  # so that one sees in a sum who is in it
    held = {}

    tensor = mine.clone()
    unisono.reduce(tensor, dst=0)  # the sum, on rank 0; the others keep what they had
    held["reduce"] = [mine], [tensor]

    tensor = mine.clone()
    unisono.all_reduce(tensor)  # the sum, on every rank
    held["all_reduce"] = [mine], [tensor]

    parts = [torch.tensor([5 + r]) for r in range(RANKS)]
    tensor = torch.zeros_like(mine)
    unisono.scatter(tensor, parts if root else None, src=0)  # rank 0 deals out its parts
    held["scatter"] = parts if root else [], [tensor]

    parts = [torch.zeros_like(mine) for _ in range(RANKS)]
    unisono.gather(mine, parts if root else None, dst=0)  # rank 0 collects every rank's tensor
    held["gather"] = [mine], parts if root else []

    parts = [torch.zeros_like(mine) for _ in range(RANKS)]
    unisono.all_gather(parts, mine)  # every rank collects every rank's tensor
    held["all_gather"] = [mine], parts

    tensor = mine.clone()
    unisono.broadcast(tensor, src=0)  # rank 0's tensor, on every rank
    held["broadcast"] = [mine], [tensor]

    return {name: ([int(t) for t in before], [int(t) for t in after]) for name, (before, after) in held.items()}


results = unisono.run(work, ranks=RANKS)
print(" " * 18, *(f"rank {rank:<9}" for rank in range(RANKS)))
for name in results[0]:
    for moment, when in enumerate(("before", "after")):
        cells = [" ".join(map(str, result[name][moment])) or "·" for result in results]
        print(f"{name if when == 'before' else '':11}{when:7}", *(f"{cell:14}" for cell in cells))
