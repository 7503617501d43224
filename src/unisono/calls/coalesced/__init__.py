"""Coalesced calls: many tensors in one call, which costs far less than one call each."""

from .coalesced_calls import all_gather_coalesced, all_reduce_coalesced, broadcast_coalesced, reduce_scatter_coalesced
from .coalescing import Coalescing, coalescing
from .flatten import flatten_

__all__ = [
    "Coalescing", "all_gather_coalesced", "all_reduce_coalesced", "broadcast_coalesced", "coalescing", "flatten_",
    "reduce_scatter_coalesced",
]  # fmt: skip
