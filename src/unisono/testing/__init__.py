"""For tests of your own: what each collective should give, proofs of an algorithm, and functions run on many ranks."""

from .check import check_algorithm
from .combining import combine
from .multi_process import ranks
from .oracle import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    exscan,
    gather,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)

__all__ = [
    "all_gather", "all_reduce", "all_to_all", "broadcast", "check_algorithm", "combine", "exscan", "gather", "ranks",
    "reduce", "reduce_scatter", "scan", "scatter",
]  # fmt: skip
