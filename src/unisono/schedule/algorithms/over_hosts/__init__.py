"""Tables over hosts: collectives inside each host, between hosts, and inside again.

`spanning` makes a `HierarchicalTable` of a few `Part`s. Each part is a table of the catalogue, among some ranks and on
some chunks. The parts together make one table of all ranks, which is proved, counted, drawn and run.
"""

from .decompose import CORES, RAILED, spanning, spanning_name
from .whole import HierarchicalTable, Part

__all__ = ["CORES", "RAILED", "HierarchicalTable", "Part", "spanning", "spanning_name"]
