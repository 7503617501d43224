"""Tables in which all ranks do the same, as the rows of rank 0: `trace` makes them for `Symmetric(p)` ranks.

If an algorithm uses its rank only in +, - and % p, rank r sends what rank 0 sends, with r added to all ranks and
chunks. So the rows of rank 0 stand for the whole table, which may have ten thousand million rows at 100,000 ranks.
"""

from collections.abc import Sequence
from typing import Any

from ..base.errors import ArgumentError


class Symmetric(int):
    """A number of ranks of which `trace` runs only rank 0, because all do the same.

    If they do not, `trace` raises ArgumentError or TypeError.
    """


class Rank:
    """A symbolic rank, "(my rank + offset) modulo p". It supports +, - and % p; all else raises TypeError."""

    def __init__(self, ranks: int, offset: int = 0) -> None:
        self.ranks, self.offset = ranks, offset % ranks

    def __add__(self, other: int) -> "Rank":
        return Rank(self.ranks, self.offset + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> "Rank":
        return Rank(self.ranks, self.offset - int(other))

    def __mod__(self, modulus: int) -> "Rank":
        if modulus != self.ranks:
            raise TypeError(f"a symbolic rank is known only modulo {self.ranks}, not modulo {modulus}")
        return self

    def __repr__(self) -> str:
        return f"(r + {self.offset}) % {self.ranks}"


def of_rank_0(move: Sequence[Any]) -> tuple[Any, ...]:
    """What a symbolic rank sends, with the numbers that rank 0 has in it.

    Raises ArgumentError if it names a rank or chunk by its number.
    """
    src, dst, sbuf, chunk, dbuf, to, n, op = move
    if not (isinstance(src, Rank) and src.offset == 0):
        raise ArgumentError(f"got source {src}, expected r: in a symmetric algorithm each rank sends for itself")
    for symbol in (dst, chunk, to):
        if not isinstance(symbol, Rank):
            raise ArgumentError(
                f"got {symbol!r} as a rank or chunk, expected (r + k) % p, because the algorithm must be symmetric"
            )
    return 0, dst.offset, sbuf, chunk.offset, dbuf, to.offset, n, op
