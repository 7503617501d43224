"""Many tensors to and from one vector: a copy for each, in one call of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, no_type_check

from numba import njit

from .atomics import load, memcpy

__all__ = ["mover"]


@no_type_check  # for Numba, which finds the types itself
def _move(addresses, rows, nrows, first, last, flat, stride, blocks, outward):
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


@cache
def mover() -> Callable[..., None]:
    """The compiled copier: move(addresses, rows, nrows, first, last, flat, stride, blocks, outward).

    addresses: of a table of tensors' addresses. rows: of a table with two words for each tensor: its place in the
    first table, and its bytes. The tensors, one behind the other, make a long vector; its bytes first to last - 1 are
    copied to the address `flat`, or from there to the tensors if `outward`. blocks: with more than one, each tensor
    has so many blocks of those bytes, and block b of all tensors lies at flat + b * stride.
    """
    compiled: Any = njit(nogil=True, cache=True)(_move)
    compiled.compile("void(int64, int64, int64, int64, int64, int64, int64, int64, boolean)")
    # The entry point skips the dispatcher's look at argument types.
    entry: Callable[..., None] = next(iter(compiled.overloads.values())).entry_point
    return entry
