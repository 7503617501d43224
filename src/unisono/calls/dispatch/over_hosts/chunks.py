"""Where the chunks of a call over several hosts lie: in the user's tensors, and in scratch memory of this rank.

Tables know chunks by number. Here, chunk c of C chunks of a vector of n elements is n*c//C .. n*(c+1)//C. If the
collective has blocks, each block is cut in this way.
"""

import ctypes
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ....schedule import BLOCKED
from ..request import Request, Tensors, is_one

_LINE = 64


class Cut(NamedTuple):
    """The elements of blocks, and the number of chunks of a piece of each block. Long vectors are sent in pieces.

    lengths: the elements of each block.
    piece: the number of this piece, of `pieces`.
    """

    lengths: tuple[int, ...]
    per_block: int
    piece: int = 0
    pieces: int = 1

    @classmethod
    def of(cls, request: Request, chunks: int, ranks: int, row: Iterable[int] | None = None) -> "Cut":
        """The cut of a request. row: the indices of `extents` to use; None: all."""
        if request.collective not in BLOCKED:
            return cls((request.like.numel(),), chunks)
        if request.extents is None:
            return cls((request.like.numel(),) * ranks, chunks // ranks)
        picked = request.extents if row is None else tuple(request.extents[k] for k in row)
        return cls(tuple(picked), chunks // ranks)

    def run(self, first: int, last: int) -> tuple[int, int, int]:
        """The block of chunks first .. last, their first element, and the element behind their last."""
        block, place = divmod(first, self.per_block)
        start, stop = (self.lengths[block] * piece // self.pieces for piece in (self.piece, self.piece + 1))
        length, end = stop - start, place + last - first + 1
        return block, start + length * place // self.per_block, start + length * end // self.per_block

    def size(self, chunk: int) -> int:
        """The number of elements of a chunk."""
        _, start, stop = self.run(chunk, chunk)
        return stop - start


class Side(NamedTuple):
    """The input or output of a call on a rank: a tensor, or a list of tensors with one for each block.

    lengths: the elements of each block that the rank has; empty: it has none.
    item: the bytes of an element.
    first: the number of the first of these blocks.
    """

    lengths: tuple[int, ...]
    item: int
    first: int = 0
    in_list: bool = False

    @classmethod
    def of(cls, cut: Cut, item: int, own: int | None, tensors: Tensors) -> "Side":
        """own: the number of the block, if the side is one block."""
        lengths = () if tensors is None else cut.lengths if own is None else (cut.lengths[own],)
        return cls(lengths, item, own or 0, tensors is not None and not is_one(tensors))

    def addresses(self, argument: int) -> tuple[int, ...]:
        """The addresses of its blocks. argument: for the kernel, the address of the tensor, or of a table of these."""
        if self.in_list:
            return tuple((ctypes.c_int64 * len(self.lengths)).from_address(argument))
        return self.in_one(argument)

    def in_one(self, address: int) -> tuple[int, ...]:
        """The addresses of its blocks, one behind the other."""
        return tuple(accumulate([length * self.item for length in self.lengths[:-1]], initial=address))


class Scratch:
    """Where chunks lie in scratch memory. runs: chunks that lie side by side; each run begins a cache line.

    start: the first free element.
    end: the element behind the last used one.
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

    def run(self, first: int, last: int) -> tuple[int, int, int]:
        """As `Cut.run`. All is one block."""
        return 0, self._at[first], self._at[last] + self._cut.size(last)
