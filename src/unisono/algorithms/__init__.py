"""One file per collective, naive first; `CATALOGUE` has them all by name, `find` finds one."""

from .catalogue import CATALOGUE, RESTRICTIONS, Algorithm, find
from .declare import algorithm, composed, table
from .formula import evaluate, lines

__all__ = ["CATALOGUE", "RESTRICTIONS", "Algorithm", "algorithm", "composed", "evaluate", "find", "lines", "table"]
