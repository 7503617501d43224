"""For users' tests: expected results of each collective, proofs of an algorithm, tests that run on several ranks."""

from .chaos import chaos
from .check import check_algorithm, lowerings
from .multi_process import ranks
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
from .rehearsal import rehearse, rows_of

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "broadcast", "chaos", "check_algorithm", "combine", "exscan", "gather",
    "lowerings", "ranks", "reduce", "reduce_scatter", "rehearse", "rows_of", "scan", "scatter",
]  # fmt: skip
