"""The algorithms: one file per collective, naive first. `CATALOGUE` maps names to algorithms, `find` looks one up."""

from . import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    hierarchical,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)
from .catalogue import CATALOGUE, RESTRICTIONS, Algorithm, algorithm, composed, enter, find, table
from .formula import lines

__all__ = ["CATALOGUE", "RESTRICTIONS", "Algorithm", "algorithm", "composed", "find", "lines", "table"]

for _file in (
    broadcast, reduce, scatter, gather, all_gather, reduce_scatter, all_reduce, all_to_all, barrier, scan, hierarchical,
):  # fmt: skip
    enter(_file)
