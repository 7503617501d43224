"""What each rank does for `unisono tune`: time the same call with other figures, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch

import unisono

from ....schedule import BLOCKED

_WARM_UP, _MOST = 3, 100
"""Calls of a turn that are not timed, and that are, at most."""

_MOST_LATE = 5
"""No turn begins after so many times the seconds: those of calls that are not timed come on top."""


class Trial(NamedTuple):
    """A call on a vector of `nbytes`, in shared memory or private, with these settings."""

    collective: str
    nbytes: int
    shared: bool
    figures: Mapping[str, int]
    algorithm: str | None


def measure(
    trials: Sequence[Trial], turns: int, seconds: float, of_turn: Callable[[Iterator[float]], float] = median
) -> list[list[float]]:
    """Per trial the seconds of a call in each turn on this rank. They take turns for about `seconds`.

    of_turn: makes one figure of a turn's calls. Where calls take long, there are fewer turns, but one at least.

    Before each call a rank rewrites its tensors, so that they are in its own processor's cache, and the ranks meet.
    """
    torch.set_num_threads(1)
    group = unisono.init()
    calls = [_call(trial) for trial in trials]
    times: list[list[float]] = [[] for _ in trials]
    share_s = seconds / turns / len(trials)
    count, end = torch.zeros(1, dtype=torch.int64), time.perf_counter() + _MOST_LATE * seconds
    for turn in range(turns):
        count[0] = turn == 0 or time.perf_counter() < end
        unisono.broadcast(count, src=0)  # all ranks must make as many
        if not count:
            break
        for trial, call, of_trial in zip(trials, calls, times, strict=True):
            group.host.config = group.host.config.having(trial.figures)
            group.plans.clear()
            group.shortcuts.clear()
            begin = time.perf_counter()
            for _ in range(_WARM_UP):
                call()
            per_call_s = (time.perf_counter() - begin) / _WARM_UP
            count[0] = max(1, min(_MOST, int(share_s / per_call_s)))
            unisono.broadcast(count, src=0)
            of_trial.append(of_turn(call() for _ in range(int(count))))
    return times


def _call(trial: Trial) -> Callable[[], float]:
    """A function that makes the call once, and returns its seconds. Blocks are of equal size; the root is rank 0."""
    rank, ranks, algorithm = unisono.get_rank(), unisono.get_world_size(), trial.algorithm
    block = max(trial.nbytes // 4 // ranks, 1)
    length = block * ranks if trial.collective in BLOCKED else max(trial.nbytes // 4, 1)
    inp, out = (unisono.empty(length) if trial.shared else torch.empty(length) for _ in range(2))
    own = inp[:block]
    blocks = list(out[: block * ranks].chunk(ranks)) if rank == 0 else None
    make: Callable[[], object] = {
        "all_reduce": lambda: unisono.all_reduce(inp, algorithm=algorithm),
        "broadcast": lambda: unisono.broadcast(inp, src=0, algorithm=algorithm),
        "reduce": lambda: unisono.reduce(inp, dst=0, algorithm=algorithm),
        "scan": lambda: unisono.scan(inp, algorithm=algorithm),
        "exscan": lambda: unisono.exscan(inp, algorithm=algorithm),
        "scatter": lambda: unisono.scatter(own, blocks, src=0, algorithm=algorithm),
        "gather": lambda: unisono.gather(own, blocks, dst=0, algorithm=algorithm),
        "all_gather": lambda: unisono.all_gather_single(out, own, algorithm=algorithm),
        "reduce_scatter": lambda: unisono.reduce_scatter_single(own, out, algorithm=algorithm),
        "all_to_all": lambda: unisono.all_to_all_single(out, inp, algorithm=algorithm),
        "barrier": lambda: unisono.barrier(algorithm=algorithm),
    }[trial.collective]

    def timed() -> float:
        inp.fill_(rank)
        out.fill_(0)
        unisono.barrier()
        begin = time.perf_counter()
        make()
        return time.perf_counter() - begin

    return timed
