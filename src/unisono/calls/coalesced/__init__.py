"""Coalesced calls: many tensors in one call. This costs far less than one call each."""

from .coalesced_calls import (
    all_gather_coalesced,
    all_reduce_coalesced,
    all_reduce_known,
    broadcast_coalesced,
    flatten_,
    reduce_scatter_coalesced,
)

__all__ = [
    "all_gather_coalesced", "all_reduce_coalesced", "all_reduce_known", "broadcast_coalesced", "flatten_",
    "reduce_scatter_coalesced",
]  # fmt: skip
