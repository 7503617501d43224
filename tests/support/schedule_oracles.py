"""What each collective does, said once more in plain numpy: the judge of tables that run on data."""

from collections.abc import Iterator

import numpy as np

from tests.support.execute import Array, even_bounds, execute
from unisono.schedule import ADD, Rows, Schedule, Transfer, X, Y, send

JUNK = -7


def is_right(schedule: Schedule, count: int, seed: int = 0, bounds: Array | None = None) -> bool:
    """Whether the table, run on `count` distinct elements per rank, gives what its collective promises."""
    p, C, kind, root = schedule.ranks, schedule.chunks, schedule.collective, schedule.root
    rng = np.random.default_rng(seed)
    if kind == "all_to_all":
        data = rng.integers(1 << 40, size=(p, p, count))
        got = execute(schedule, data.reshape(p, p * count))[schedule.result]
        return np.array_equal(np.reshape(got, (p, p, count)), data.swapaxes(0, 1))
    if kind == "barrier":
        return np.array_equal(execute(schedule, np.eye(p, dtype=int))[X], np.ones((p, p)))
    at = even_bounds(count, C) if bounds is None else bounds
    data = rng.integers(1 << 40, size=(p, count))
    total, k = data.sum(axis=0), max(1, C // p)
    block = [slice(at[min(r * k, C)], at[min((r + 1) * k, C)]) for r in range(p)]
    start = data.copy()
    if kind in ("broadcast", "scatter"):
        start[np.arange(p) != root] = JUNK
    if kind in ("gather", "all_gather"):
        start[:] = JUNK
        for r in range(p):
            start[r, block[r]] = data[r, block[r]]
        world = np.concatenate([data[r, block[r]] for r in range(p)])
    ends = np.array(execute(schedule, start, at)[schedule.result])
    match kind:
        case "broadcast":
            return bool((ends == data[root]).all())
        case "reduce":
            return bool((ends[root] == total).all())
        case "all_reduce":
            return bool((ends == total).all())
        case "scatter":
            return all(np.array_equal(ends[r, block[r]], data[root, block[r]]) for r in range(p))
        case "gather":
            return bool((ends[root] == world).all())
        case "all_gather":
            return bool((ends == world).all())
        case "reduce_scatter":
            return all(np.array_equal(ends[r, block[r]], total[block[r]]) for r in range(p))
        case "scan":
            return bool((ends == data.cumsum(axis=0)).all())
        case "exscan":
            return bool((ends[1:] == data.cumsum(axis=0)[:-1]).all())
    raise AssertionError(kind)


def all_to_all_v_is_right(schedule: Schedule, seed: int = 0) -> bool:
    """The same, with every block of another size."""
    p = schedule.ranks
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, (p, p))
    zero = np.zeros((p, 1), int)
    bounds = np.zeros((3, p, p + 1), int)
    bounds[X], bounds[Y] = np.hstack([zero, counts.cumsum(axis=1)]), np.hstack([zero, counts.T.cumsum(axis=1)])
    data = [rng.integers(1 << 40, size=n) for n in counts.sum(axis=1)]
    got = execute(schedule, data, bounds)[Y]
    blocks = [np.split(vector, ends[1:-1]) for vector, ends in zip(data, bounds[X], strict=True)]
    return all(np.array_equal(got[q], np.concatenate([blocks[r][q] for r in range(p)])) for q in range(p))


def twice(r: Rows, p: int) -> Iterator[Transfer]:
    """An algorithm that counts what rank 0 has twice."""
    yield send(0, 1, 0, op=ADD)
    yield send(0, 1, 0, op=ADD)
