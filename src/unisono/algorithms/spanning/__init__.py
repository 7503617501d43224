"""Tables over hosts: collectives inside each host, between hosts, and inside again."""

from .make import CORES, RAILED, flat, spanning, spanning_name
from .part import Part
from .proof import prove_by_parts
from .whole import Spanning

__all__ = ["CORES", "RAILED", "Part", "Spanning", "flat", "prove_by_parts", "spanning", "spanning_name"]
