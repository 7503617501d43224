"""Where the chunks of a call over several hosts lie: in the user's tensors, and in scratch memory of this rank.

Tables know chunks by number. Here chunk c of a vector of n elements that is cut into C of them is n*c//C .. n*(c+1)//C;
where the collective has blocks, each block is cut so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch

from ....engine.tensors.plain import as_bits
from ....schedule import BLOCKED
from ...arguments import plain_dtype
from ..request import Request, Tensors, is_one

_LINE = 64

ONE_IN = {"all_gather", "gather"}
"""Collectives to which a rank gives one block."""
ONE_OUT = {"reduce_scatter", "scatter"}
"""Collectives from which a rank gets one block."""


class Cut(NamedTuple):
    """How many elements blocks have, and into how many chunks a piece of each is cut. lengths: of each block.

    piece: which of as many as `pieces` this is about. A call on a long vector makes its way piece by piece.
    """

    lengths: tuple[int, ...]
    per_block: int
    piece: int = 0
    pieces: int = 1

    @classmethod
    def of(cls, request: Request, chunks: int, ranks: int, row: Iterable[int] | None = None) -> Cut:
        """The cut of a request. row: which of `extents`; None: all of them."""
        if request.collective not in BLOCKED:
            return cls((request.like.numel(),), chunks)
        if request.extents is None:
            return cls((request.like.numel(),) * ranks, chunks // ranks)
        picked = request.extents if row is None else tuple(request.extents[k] for k in row)
        return cls(tuple(picked), chunks // ranks)

    def span(self, chunk: int) -> tuple[int, int, int]:
        """Block, first element and element behind the last of a chunk."""
        block, place = divmod(chunk, self.per_block)
        length = self.lengths[block]
        first, last = length * self.piece // self.pieces, length * (self.piece + 1) // self.pieces
        length = last - first
        return block, first + length * place // self.per_block, first + length * (place + 1) // self.per_block

    def size(self, chunk: int) -> int:
        """The elements of a chunk."""
        _, start, stop = self.span(chunk)
        return stop - start


class Vector:
    """A user's tensor, or list of tensors with one for each block. own: it is the block of this number.

    lengths: the elements of each block.
    """

    def __init__(self, lengths: Sequence[int], tensors: Tensors, own: int | None = None) -> None:
        self._first = own or 0
        ends = [0, lengths[own]] if own is not None else [0, *accumulate(lengths)]
        self._blocks: list[torch.Tensor] = []
        if is_one(tensors):
            whole = flat(tensors)
            self._blocks = [whole[start:stop] for start, stop in pairwise(ends)]
        elif tensors is not None:
            self._blocks = [flat(tensor) for tensor in tensors]
        self._whole = flat(tensors) if is_one(tensors) else None

    def take(self, tensors: Tensors) -> None:
        """Copy these here; a list has a tensor for each block."""
        for here, there in self._pairs(tensors):
            here.copy_(there)

    def give(self, tensors: Tensors) -> None:
        """Copy this there."""
        for here, there in self._pairs(tensors):
            there.copy_(here)

    def _pairs(self, tensors: Tensors) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        if is_one(tensors) and self._whole is not None:
            return [(self._whole, flat(tensors))]
        return zip(self._blocks, map(flat, tensors or ()), strict=True)

    def view(self, cut: Cut, first: int, last: int) -> torch.Tensor:
        """The elements of chunks first .. last of one block."""
        block, start, _ = cut.span(first)
        return self._blocks[block - self._first][start : cut.span(last)[2]]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a contiguous tensor, without its shape."""
    if tensor.is_quantized:  # torch copies between quantized tensors only
        bits: Any = torch.empty(0, dtype=plain_dtype(tensor.dtype), device="cpu")
        numbers: torch.Tensor = bits.set_(tensor.untyped_storage(), tensor.storage_offset(), (tensor.numel(),))
        return numbers
    return as_bits(tensor.data).view(-1)  # .data: a version counter of its own


class Scratch:
    """Where chunks lie in a scratch tensor. runs: chunks that lie side by side; each run begins a line.

    start: the first element that is free. end: the one behind the last that is used.
    """

    def __init__(self, cut: Cut, runs: Sequence[Sequence[int]], item: int, start: int) -> None:
        self._cut, self._at = cut, dict[int, int]()
        at, line = start, max(1, _LINE // item)
        for run in runs:
            at = -(-at // line) * line
            for chunk in run:
                self._at[chunk] = at
                at += cut.size(chunk)
        self.end = at

    def view(self, memory: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """The elements of chunks that lie side by side."""
        return memory[self._at[first] : self._at[last] + self._cut.size(last)]
