"""Run a table on real data: all ranks in one process, with numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unisono.schedule import Schedule, X, moves

Array = npt.NDArray[Any]


def even_bounds(count: int, chunks: int) -> npt.NDArray[np.int64]:
    """The offsets of the chunks of `count` elements, and the end of the last. Chunks may be empty."""
    return np.arange(chunks + 1) * count // chunks


def execute(
    schedule: Schedule, inputs: Sequence[npt.ArrayLike] | Array, bounds: npt.ArrayLike | None = None
) -> list[list[Array]]:
    """Run the table on one vector per rank; return the buffers X, Y and T of every rank as `buffers[buffer][rank]`.

    bounds: element offsets of the chunks, of shape (chunks + 1,), or broadcastable to (3, ranks, chunks + 1) if buffers
    and ranks differ; by default `even_bounds`. X starts as the inputs, Y and T as zeros. Values are added; a barrier
    keeps the larger one.
    """
    p, C = schedule.ranks, schedule.chunks
    vectors = [np.array(vector) for vector in inputs]
    at = np.broadcast_to(
        even_bounds(len(vectors[0]), C) if bounds is None else np.asarray(bounds), (3, p, C + 1)
    ).tolist()
    combine = np.maximum if schedule.collective == "barrier" else np.add
    buffers = [[np.zeros(at[b][r][C], vectors[r].dtype) for r in range(p)] for b in range(3)]
    buffers[X] = vectors
    for _, round_ in moves(schedule):
        results = []
        for slot, sources in round_:
            first, *others = (buffers[b][r][at[b][r][c] : at[b][r][c + 1]] for r, b, c in sources)
            result = first.copy()
            for other in others:
                result = combine(result, other)
            results.append((slot, result))
        for (r, b, c), result in results:
            buffers[b][r][at[b][r][c] : at[b][r][c + 1]] = result
    return buffers
