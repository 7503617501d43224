"""Copies between many tensors and one flat tensor: see `engine.tensors.packing`."""

from __future__ import annotations

from .atomics import load, memcpy
from .compiled import compiled


@compiled
def move(addresses, rows, nrows, first, last, flat, stride, blocks, outward):  # type: ignore[no-untyped-def]
    """See `engine.tensors.packing.mover`."""
    for block in range(blocks):
        start = 0
        for k in range(nrows):
            nbytes = load(rows + 16 * k + 8)
            low, high = max(first, start), min(last, start + nbytes)
            if low < high:
                tensor = load(addresses + 8 * load(rows + 16 * k)) + block * nbytes + low - start
                vector = flat + block * stride + low - first
                if outward:
                    memcpy(tensor, vector, high - low)
                else:
                    memcpy(vector, tensor, high - low)
            start += nbytes
            if start >= last:
                break
    return 0
