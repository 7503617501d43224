"""Tables over hosts: collectives inside each host, between hosts, and inside again."""

from .decompose import CORES, RAILED, flat, spanning, spanning_name
from .part import Part
from .parts_proof import prove_by_parts
from .whole import HierarchicalTable

__all__ = ["CORES", "RAILED", "HierarchicalTable", "Part", "flat", "prove_by_parts", "spanning", "spanning_name"]
