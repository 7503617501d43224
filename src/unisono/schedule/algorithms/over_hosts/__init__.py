"""Tables over hosts: collectives inside each host, between hosts, and inside again.

`spanning` makes a `HierarchicalTable` of a few `Part`s. Each part is a table of the catalogue, among some ranks and on
some chunks. The parts together make one table of all ranks, which is proved, counted and drawn. A call runs the same
parts, see `calls.dispatch.over_hosts`.
"""

from typing import TYPE_CHECKING

from ....base.python import late_names
from .decompose import CORES, RAILED, flat, spanning, spanning_name
from .whole import HierarchicalTable, Part

if TYPE_CHECKING:
    from .parts_proof import prove_by_parts
else:  # no call needs it
    __getattr__ = late_names(__name__, {"prove_by_parts": f"{__name__}.parts_proof"})

__all__ = ["CORES", "RAILED", "HierarchicalTable", "Part", "flat", "prove_by_parts", "spanning", "spanning_name"]
