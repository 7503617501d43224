"""For users' tests: expected results of each collective, proofs of an algorithm, ranks that fail where a test says."""

from .chaos import chaos
from .oracle import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    combine,
    exscan,
    gather,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from .rehearsal import check_algorithm, lowerings, rehearse, rows_of

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "broadcast", "chaos", "check_algorithm", "combine", "exscan", "gather",
    "lowerings", "reduce", "reduce_scatter", "rehearse", "rows_of", "scan", "scatter",
]  # fmt: skip
