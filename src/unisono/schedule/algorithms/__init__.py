"""The algorithms: one file per collective, naive first. `CATALOGUE` maps names to algorithms, `find` looks one up."""

from .catalogue import CATALOGUE, RESTRICTIONS, Algorithm, algorithm, composed, find, table
from .formula import lines

__all__ = ["CATALOGUE", "RESTRICTIONS", "Algorithm", "algorithm", "composed", "find", "lines", "table"]
