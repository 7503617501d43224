"""Copies between many tensors and one flat tensor."""

from __future__ import annotations

from .atomics import load, memcpy
from .compiled import compiled


@compiled
def move(addresses, rows, nrows, first, last, flat, stride, blocks, outward):  # type: ignore[no-untyped-def]
    """Copy many tensors into one flat tensor, or back.

    The tensors, concatenated, are a long vector. Its bytes first to last - 1 are copied to the address `flat`, or with
    `outward` from there to the tensors.

    addresses: the address of a table of tensors' addresses.
    rows: the address of a table with two words per tensor: its index in the first table, and its bytes.
    blocks: the number of blocks of each tensor; block b of all tensors is at flat + b * stride.
    """
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
