"""Copy many tensors into one flat tensor, or back, in one call of compiled code."""

from __future__ import annotations

from collections.abc import Callable

from ..kernels import kernel


def mover() -> Callable[..., int]:
    """The compiled copier: move(addresses, rows, nrows, first, last, flat, stride, blocks, outward).

    addresses: the address of a table of tensors' addresses. rows: the address of a table with two words per tensor: its
    index in the first table, and its bytes. The tensors, concatenated, are a long vector; its bytes first to last - 1
    are copied to the address `flat`, or with `outward` from there to the tensors. blocks: if more than one, each tensor
    has so many blocks of these bytes, and block b of all tensors is at flat + b * stride.
    """
    return kernel("pack.move")
