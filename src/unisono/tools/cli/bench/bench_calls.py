"""What each rank does for `unisono bench`: make calls of all_reduce, time them, and check every result."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

import unisono

from ..shared.beside_gloo import start_gloo

_WARM_UP, _MOST = 3, 500
"""Calls of a turn that are not timed, because the other engine has used the caches before, and that are, at most."""

_PERIOD = 13
"""The first call of a turn sums numbers that repeat after so many places, so that misplaced blocks are noticed."""


class Turn(NamedTuple):
    """times: seconds of each timed call on this rank. wrong: elements of all results that were not the sum."""

    times: list[float]
    wrong: int


def measure(engine: str, folder: str, nbytes: int, seconds: float) -> Turn:
    """Time calls of all_reduce on float32 tensors of `nbytes`, for about `seconds`. Ranks on Gloo meet in `folder`."""
    torch.set_num_threads(1)
    if engine == "Gloo":
        start_gloo(folder)
        return timed(dist.all_reduce, nbytes, seconds)
    return timed(unisono.all_reduce, nbytes, seconds)


def timed(all_reduce: Callable[[torch.Tensor], object], nbytes: int, seconds: float) -> Turn:
    """Time calls of a function that sums a tensor over all ranks in place: one at least, and _MOST at most.

    Before each call a rank rewrites its tensor, so that it lies in the cache of its own processor as in a user's
    program, and the ranks meet. The numbers differ on every rank and in every call; their sums are exact.
    """
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    sum_of_ranks = ranks * (ranks - 1) // 2

    def iteration(number: int) -> tuple[float, int]:
        tensor.fill_(rank + number)
        unisono.barrier()
        begin = time.perf_counter()
        all_reduce(tensor)
        took_s = time.perf_counter() - begin
        return took_s, _count_wrong(tensor, ranks * number + sum_of_ranks)

    places = torch.arange(nbytes // 4, dtype=torch.float32).remainder_(_PERIOD)
    tensor = places + rank
    all_reduce(tensor)
    wrong = _count_wrong(tensor, places.mul_(ranks).add_(sum_of_ranks))
    begin = time.perf_counter()
    wrong += sum(iteration(number)[1] for number in range(_WARM_UP))
    per_call_s = (time.perf_counter() - begin) / _WARM_UP
    calls = torch.tensor(max(1, min(_MOST, int(seconds / per_call_s))))
    unisono.broadcast(calls, src=0)  # all ranks must make as many
    gc.collect()
    gc.disable()
    try:
        results = [iteration(number) for number in range(int(calls))]
    finally:
        gc.enable()
    return Turn([took_s for took_s, _ in results], wrong + sum(count for _, count in results))


def _count_wrong(tensor: torch.Tensor, right: torch.Tensor | float) -> int:
    return int((tensor != right).sum())
