"""Time calls on each rank: by several algorithms or libraries, in turns."""

import datetime
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import FileStore, distributed_c10d, init_process_group

import unisono

from ....base.errors import ArgumentError
from ....base.linux import processors
from ....schedule import BLOCKED
from .target import IN_PLACE

LIBRARIES = ("unisono", "Gloo")
"""What `bench` and `make demo` compare, by the names that they print."""


@functools.cache
def start_gloo(folder: str, timeout_s: float = 120.0) -> None:
    """Make Gloo torch's default process group over the calling ranks. They meet in `folder`, so no port is needed.

    Gloo sends over the loopback interface, its fastest transport within a host. Its threads are not pinned.
    """
    rank, ranks = unisono.get_rank(), unisono.get_world_size()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = FileStore(f"{folder}/gloo-{ranks}", ranks)
    limit = datetime.timedelta(seconds=timeout_s)
    places: Any = distributed_c10d
    places.ProcessGroupGloo = _distributed_c10d.ProcessGroupGloo  # torch's own, also if ours has taken its place
    init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)


_CALL_TURNS = 5  # the number of turns of each algorithm
_WARM_UP, _MOST = 3, 100  # calls of a turn that are not timed, and the most that are timed

_MOST_LATE = 5
"""No turn begins later than this factor times the seconds. Calls that are not timed take extra time."""

_PERIOD = 1021
"""Numbers repeat after this number of elements, so that misplaced blocks are noticed. Their sums are exact."""

_OfTurn = TypeVar("_OfTurn")


class Trial(NamedTuple):
    """A call on a private vector of `nbytes`, by us or by another library."""

    collective: str
    nbytes: int
    algorithm: str | None = None
    library: str = LIBRARIES[0]


Maker = Callable[[Trial, torch.Tensor, torch.Tensor], Callable[[], object]]
"""From a trial, its input and its output, which may be one tensor, to a function that makes the call."""


class Compared(NamedTuple):
    """Seconds of each call on this rank; the number of elements in its results that differ from the first trial's."""

    times: list[float]
    wrong: int


def measure(
    trials: Sequence[Trial], turns: int, seconds: float, of_turn: Callable[[Iterator[float]], float] = median
) -> list[list[float]]:
    """Per trial the seconds of a call in each turn on this rank. Trials take turns for about `seconds`.

    of_turn: makes one figure of a turn's calls. If calls take long, there are fewer turns, but at least one.
    """
    return _take_turns([_Call(trial, _by_us) for trial in trials], turns, seconds, of_turn)


def compare(
    trials: Sequence[Trial], turns: int, seconds: float, folder: str, more: Mapping[str, Maker] | None = None
) -> list[Compared]:
    """Time one call by several libraries in turns, and compare their results. Ranks on Gloo meet in `folder`.

    more: further libraries.
    """
    start_gloo(folder)
    makers = dict(zip(LIBRARIES, (_by_us, partial(_by, dist)), strict=True)) | dict(more or {})
    calls = [_Call(trial, makers[trial.library]) for trial in trials]
    for call in calls:
        call()
    for call in calls:
        call.right = calls[0].result.clone()
    times = _take_turns(calls, turns, seconds, list)
    return [
        Compared([took_s for turn in of_call for took_s in turn], call.wrong)
        for call, of_call in zip(calls, times, strict=True)
    ]


def time_here(collective: str, names: Sequence[str], ranks: int, nbytes: int, seconds: float) -> dict[str, float]:
    """The least seconds of a call by each of these algorithms, among new ranks, in about `seconds`.

    They are of the slowest rank in the quietest turn, as other programs may run, too. If ranks are oversubscribed, it
    is the median of this turn: the least depends on which of them had a processor.
    """
    most = 4 * processors()
    if ranks > most:
        raise ArgumentError(f"--measure: got {ranks} ranks, expected at most {most} on these processors")
    trials = [Trial(collective, nbytes, algorithm=name) for name in names]
    of_turn = median if ranks > processors() else min
    with unisono.world(ranks, timeout_s=120) as world:
        of_ranks = world.run(measure, trials, _CALL_TURNS, seconds, of_turn)
    return {name: min(map(max, *of_name)) for name, of_name in zip(names, zip(*of_ranks, strict=True), strict=True)}


def slowest(ranks: Sequence[Sequence[Compared]]) -> list[Compared]:
    """Per trial the seconds of each call, on its slowest rank; and the elements that differ, of all ranks."""
    return [
        Compared(list(map(max, *(one.times for one in of_trial))), sum(one.wrong for one in of_trial))
        for of_trial in zip(*ranks, strict=True)
    ]


class _Call:
    """Makes a trial's call, and returns how long it took.

    Before the call, a rank rewrites its tensors, so that they are in its own processor's cache. Then the ranks meet.
    The numbers differ on every rank and in every call.
    """

    def __init__(self, trial: Trial, maker: Maker) -> None:
        self.trial, self.wrong, self.right = trial, 0, torch.empty(0)
        ranks = unisono.get_world_size()
        block, blocked = max(trial.nbytes // 4 // ranks, 1), trial.collective in BLOCKED
        length = block * ranks if blocked else max(trial.nbytes // 4, 1)
        self._inp, self._out = torch.empty(length), torch.empty(length)
        self.result = self._inp if trial.collective in IN_PLACE else self._out
        if trial.collective == "reduce_scatter":
            self.result = self._out[:block]
        self._make = maker(trial, self._inp, self._out)
        self._numbers, self._calls = torch.arange(_PERIOD, dtype=torch.float32) + unisono.get_rank(), 0
        self._step = ranks if trial.collective in ("all_reduce", "reduce_scatter") else 1

    def __call__(self) -> float:
        whole = len(self._inp) // _PERIOD * _PERIOD
        numbers = self._numbers + self._calls
        self._inp[:whole].view(-1, _PERIOD).copy_(numbers)
        self._inp[whole:].copy_(numbers[: len(self._inp) - whole])
        self._out.fill_(0)
        unisono.barrier()
        begin = time.perf_counter()
        self._make()
        took_s = time.perf_counter() - begin
        if len(self.right):
            self.wrong += int((self.result.sub_(self._calls * self._step) != self.right).sum())
        self._calls += 1
        return took_s


def _take_turns(
    calls: Sequence[_Call], turns: int, seconds: float, of_turn: Callable[[Iterator[float]], _OfTurn]
) -> list[list[_OfTurn]]:
    torch.set_num_threads(1)
    found: list[list[_OfTurn]] = [[] for _ in calls]
    share_s = seconds / turns / len(calls)
    count, end = torch.zeros(1, dtype=torch.int64), time.perf_counter() + _MOST_LATE * seconds
    for turn in range(turns):
        count[0] = turn == 0 or time.perf_counter() < end
        unisono.broadcast(count, src=0)  # all ranks must make the same number of calls
        if not count:
            break
        for call, of_call in zip(calls, found, strict=True):
            begin = time.perf_counter()
            for _ in range(_WARM_UP):
                call()
            per_call_s = (time.perf_counter() - begin) / _WARM_UP
            count[0] = max(1, min(_MOST, int(share_s / per_call_s)))
            unisono.broadcast(count, src=0)
            of_call.append(of_turn(call() for _ in range(int(count))))
    return found


def _by(library: Any, trial: Trial, inp: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """The call of a library that has torch's names. Blocks are of equal size; the root is rank 0."""
    ranks, how = unisono.get_world_size(), {"algorithm": trial.algorithm} if trial.algorithm else {}
    block = len(inp) // ranks
    sent, got = inp[:block], out[:block]
    blocks = list(out[: block * ranks].chunk(ranks)) if unisono.get_rank() == 0 else None
    make: Callable[[], object] = {
        "all_reduce": lambda: library.all_reduce(inp, **how),
        "broadcast": lambda: library.broadcast(inp, src=0, **how),
        "reduce": lambda: library.reduce(inp, dst=0, **how),
        "scan": lambda: library.scan(inp, **how),
        "exscan": lambda: library.exscan(inp, **how),
        "scatter": lambda: library.scatter(sent, blocks, src=0, **how),
        "gather": lambda: library.gather(sent, blocks, dst=0, **how),
        "all_gather": lambda: library.all_gather_single(out, sent, **how),
        "reduce_scatter": lambda: library.reduce_scatter_single(got, inp, **how),
        "all_to_all": lambda: library.all_to_all_single(out, inp, **how),
        "barrier": lambda: library.barrier(**how),
    }[trial.collective]
    return make


_by_us = partial(_by, unisono)
