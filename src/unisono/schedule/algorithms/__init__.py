"""The algorithms: one file per collective, naive first. `CATALOGUE` maps names to algorithms, `find` looks one up."""

from typing import TYPE_CHECKING

from ...base.python import late_names
from .catalogue import CATALOGUE, RESTRICTIONS, Algorithm, algorithm, composed, find, table

__all__ = ["CATALOGUE", "RESTRICTIONS", "Algorithm", "algorithm", "composed", "find", "lines", "table"]

if TYPE_CHECKING:
    from .formula import lines
else:
    __getattr__ = late_names(__name__, {"lines": f"{__name__}.formula"})
