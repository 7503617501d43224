"""What each collective does, said once more in plain numpy: the judge of tables that run on data, in one process."""

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.schedule import ADD, Rows, Schedule, Transfer, X, moves, send

JUNK = -7
Array = npt.NDArray[Any]


def execute(schedule: Schedule, inputs: Array) -> list[list[Array]]:
    """Run the table on one vector per rank; the buffers X, Y and T of every rank as `buffers[buffer][rank]`.

    X starts as the inputs, Y and T as zeros. Values are added; a barrier keeps the larger one.
    """
    at = even_bounds(inputs.shape[1], schedule.chunks)
    combine = np.maximum if schedule.collective == "barrier" else np.add
    buffers = [[vector.copy() if b == X else np.zeros_like(vector) for vector in inputs] for b in range(3)]
    for _, round_ in moves(schedule):
        results = []
        for slot, sources in round_:
            pieces = [buffers[b][r][at[c] : at[c + 1]] for r, b, c in sources]
            results.append((slot, reduce(combine, pieces[1:], pieces[0].copy())))
        for (r, b, c), result in results:
            buffers[b][r][at[c] : at[c + 1]] = result
    return buffers


def even_bounds(count: int, chunks: int) -> npt.NDArray[np.int64]:
    """The offsets of the chunks of `count` elements, and the end of the last. Chunks may be empty."""
    return np.arange(chunks + 1) * count // chunks


def is_right(schedule: Schedule, count: int, seed: int = 0) -> bool:
    """Whether the table, run on `count` distinct elements per rank, gives what its collective promises."""
    p, C, kind, ranks = schedule.ranks, schedule.chunks, schedule.collective, np.arange(schedule.ranks)[:, None]
    rng = np.random.default_rng(seed)
    if kind == "all_to_all":
        data = rng.integers(1 << 40, size=(p, p, count))
        got = execute(schedule, data.reshape(p, p * count))[schedule.result]
        return np.array_equal(np.reshape(got, (p, p, count)), data.swapaxes(0, 1))
    if kind == "barrier":
        return np.array_equal(execute(schedule, np.eye(p, dtype=int))[X], np.ones((p, p)))
    data = rng.integers(1 << 40, size=(p, count))
    root, everywhere = ranks == schedule.root, ranks >= 0
    owned = ranks == np.repeat(np.arange(C), np.diff(even_bounds(count, C))) // max(1, C // p)
    total, until = data.sum(axis=0), data.cumsum(axis=0)
    before, result, after = {
        "broadcast": (root, data[schedule.root], everywhere),
        "reduce": (everywhere, total, root),
        "all_reduce": (everywhere, total, everywhere),
        "scatter": (root, data[schedule.root], owned),
        "gather": (owned, (data * owned).sum(axis=0), root),
        "all_gather": (owned, (data * owned).sum(axis=0), everywhere),
        "reduce_scatter": (everywhere, total, owned),
        "scan": (everywhere, until, everywhere),
        "exscan": (everywhere, np.roll(until, 1, axis=0), ranks > 0),
    }[kind]
    ends = np.array(execute(schedule, np.where(before, data, JUNK))[schedule.result])
    return bool(((ends == result) | ~after).all())


def twice(r: Rows, p: int) -> Iterator[Transfer]:
    """An algorithm that counts what rank 0 has twice."""
    yield send(0, 1, 0, op=ADD)
    yield send(0, 1, 0, op=ADD)
