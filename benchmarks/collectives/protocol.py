"""How one call is timed and checked.

*Owner-touched*: before each timed call every rank rewrites its whole input, and an output that is not the input too,
so that the data lie where a user's program leaves them, in the cache of their owner. Then all ranks meet, and each
times one call. An iteration takes as long as its slowest rank, or begins with the call of the rank that is late. Every
result is checked, element by element.

Tensors are seen here as numpy arrays, bfloat16 as its 16 bits, so that the same lines serve torch and MPI.
"""

import functools
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..turns import Rendezvous, background

Array = npt.NDArray[Any]

_PERIOD = 13
"""Test values run from 1 to 13: their sums over up to 13 ranks stay below 256, exact in bfloat16."""

_LEAST, _MOST = 5, 300
"""Iterations of one measurement."""


@dataclass(frozen=True)
class Cell:
    """One measurement: `contender` does `op` on `nbytes` of `dtype` for about `seconds`.

    nbytes counts as nccl-tests does: the larger tensor of a rank, so for all_gather the output.
    late: how a rank passes its time before its call, and for how many seconds; the ranks take turns. busy: the number
    of background processes.
    """

    contender: str
    op: str
    dtype: str
    nbytes: int
    seconds: float
    late: tuple[str, float] | None = None
    busy: int = 0

    @property
    def count(self) -> int:
        """Elements in the larger tensor of a rank."""
        return self.nbytes // {"float32": 4, "bfloat16": 2}[self.dtype]


@dataclass(frozen=True)
class Sample:
    """What one rank saw: when each call began and ended, on the clock of all processes; wrong elements."""

    spans: list[tuple[float, float]]
    wrong: int


def seconds(cell: Cell, ranks: Sequence[Sample]) -> list[float]:
    """How long each iteration took: on its slowest rank; if one is late, from its call until the last rank is out."""
    turns = zip(*(sample.spans for sample in ranks), strict=True)
    if cell.late:
        return [max(end for _, end in turn) - max(begin for begin, _ in turn) for turn in turns]
    return [max(end - begin for begin, end in turn) for turn in turns]


def shapes(op: str, count: int, ranks: int) -> tuple[int, int]:
    """Elements of input and output of a rank; an output of 0 elements is the input itself."""
    n_out = {"all_gather": count, "reduce_scatter": count // ranks, "all_to_all": count, "memcpy": count}
    return count // ranks if op == "all_gather" else count, n_out.get(op, 0)


def encode(values: Array, dtype: str) -> Array:
    """Small whole numbers as the bits of `dtype`."""
    floats = values.astype(np.float32)
    return floats if dtype == "float32" else (floats.view(np.uint32) >> 16).astype(np.uint16)


def expected(op: str, rank: int, ranks: int, count: int, value: Callable[[int, int, int], Array]) -> Array:
    """The output of `rank`, where `value(r, start, n)` are n elements of the input of rank r from `start` on."""
    n = count // ranks
    everybody = range(ranks)
    if op == "all_reduce":
        return functools.reduce(np.add, (value(r, 0, count) for r in everybody))
    if op == "reduce_scatter":
        return functools.reduce(np.add, (value(r, rank * n, n) for r in everybody))
    if op == "broadcast":
        return value(0, 0, count)
    if op == "all_gather":
        return np.concatenate([value(r, 0, n) for r in everybody])
    if op == "all_to_all":
        return np.concatenate([value(r, rank * n, n) for r in everybody])
    return value(rank, 0, count)  # a memcpy


def _varied(rank: int, start: int, n: int) -> Array:
    """Another value at each of 13 consecutive places, and on each rank."""
    period = 1 + (5 * rank + start + np.arange(_PERIOD)) % _PERIOD
    return np.resize(period.astype(np.int16), n)


def _constant(rank: int, turn: int) -> Array:
    """One value for the whole input, another on each rank and in each iteration."""
    return np.array([1 + (5 * rank + turn) % _PERIOD])


def measure(meet: Rendezvous, cell: Cell, source: Array, target: Array, call: Callable[[], object]) -> Sample:
    """Time `call`, which does what `cell` says with `source` and `target` (the same array if in place).

    The first four calls are not timed: after another contender's turn they find cold caches and its threads. The very
    first has an input that varies from place to place, which tells blocks apart. The inputs of the others are constant,
    because reading a second array would spoil the caches.
    """

    rank, ranks = meet.rank, meet.ranks

    def wrong(value: Callable[[int, int, int], Array]) -> int:
        right = encode(expected(cell.op, rank, ranks, cell.count, value), cell.dtype)
        return int(np.count_nonzero(target.reshape(len(right), -1) != right[:, None]))

    def touch(turn: int) -> None:
        source.fill(encode(_constant(rank, turn), cell.dtype)[0])
        if target is not source:
            target.fill(0)

    def iteration(turn: int) -> tuple[tuple[float, float], int]:
        touch(turn)
        meet.barrier()
        if cell.late and turn % ranks == rank:
            _be_late(*cell.late)
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        return (start, end), wrong(lambda r, start, n: _constant(r, turn))  # noqa: ARG005

    source[:] = encode(_varied(rank, 0, len(source)), cell.dtype)
    meet.barrier()
    call()
    errors = wrong(_varied)
    begin = time.perf_counter()
    errors += sum(iteration(turn)[1] for turn in range(3))
    per_iteration = (time.perf_counter() - begin) / 3
    turns = meet.share(int(min(max(cell.seconds / per_iteration, _LEAST), _MOST)))
    gc.collect()
    gc.disable()
    try:
        with background(cell.busy, rank):
            results = [iteration(turn) for turn in range(turns)]
    finally:
        gc.enable()
    return Sample([span for span, _ in results], errors + sum(bad for _, bad in results))


def _be_late(how: str, seconds: float) -> None:
    if how == "sleeping":
        time.sleep(seconds)
    end = time.perf_counter() + seconds
    while how == "computing" and time.perf_counter() < end:
        pass
