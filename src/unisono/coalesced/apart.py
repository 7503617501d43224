"""Do tensors share memory, of which one is written?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["overlap"]


def overlap(
    starts: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64], written: npt.NDArray[np.bool_]
) -> tuple[int, int] | None:
    """Two tensors (their places) that share memory, of which at least one is written; None where there are none.

    starts, nbytes, written: of each tensor, its address, its bytes, and whether it is written.
    """
    ends, filled = starts + nbytes, nbytes > 0
    if (np.sort(starts)[1:] >= np.sort(ends)[:-1]).all():
        return None  # each ends before the next starts
    (targets,) = np.nonzero(written & filled)
    targets = targets[np.argsort(starts[targets], kind="stable")]
    (into,) = np.nonzero(ends[targets[:-1]] > starts[targets[1:]])
    if len(into):
        return int(targets[into[0]]), int(targets[into[0] + 1])
    if len(targets):  # these lie apart now, so the first that ends behind a source's start is the one that it may meet
        (sources,) = np.nonzero(~written & filled)
        first = np.searchsorted(ends[targets], starts[sources], side="right")
        meets = targets[np.minimum(first, len(targets) - 1)]
        hit = (first < len(targets)) & (starts[meets] < ends[sources])
        if hit.any():
            return int(sources[hit][0]), int(meets[hit][0])
    return None
