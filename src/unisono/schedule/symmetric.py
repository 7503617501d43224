"""Tables in which all ranks do the same, as the rows of rank 0.

If an algorithm uses its rank only in +, - and % p, rank r sends what rank 0 sends, with r added to all ranks and
chunks. So the rows of rank 0 stand for the whole table, which may have ten thousand million rows at 100,000 ranks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import ArgumentError
from .table import Rounds, Schedule, X, current_line


class Rank:
    """A symbolic rank, "(my rank + offset) modulo p". It has only +, - and % p; everything else is a TypeError."""

    def __init__(self, ranks: int, offset: int = 0) -> None:
        self.ranks, self.offset = ranks, offset % ranks

    def __add__(self, other: int) -> "Rank":
        return Rank(self.ranks, self.offset + int(other))

    __radd__ = __add__

    def __sub__(self, other: int) -> "Rank":
        return Rank(self.ranks, self.offset - int(other))

    def __mod__(self, modulus: int) -> "Rank":
        if modulus != self.ranks:
            raise TypeError(f"a symbolic rank is known modulo {self.ranks} only, not modulo {modulus}")
        return self

    def __repr__(self) -> str:
        return f"(r + {self.offset}) % {self.ranks}"


def trace_symmetric(
    algorithm: Callable[..., Rounds], ranks: int, collective: str, *, result: int = X, name: str = ""
) -> Schedule:
    """Trace an algorithm with one chunk per rank for rank 0 only; return a symmetric schedule.

    `transpose`, `seq` and `as_collective` work on it as on any table; `spread` makes the rows of all ranks. Raises
    ArgumentError if the algorithm names a rank or chunk by its number, TypeError if it uses its rank in another way.
    """
    title = name or algorithm.__name__
    rows, yields = [], []
    rounds = algorithm(Rank(ranks), ranks)
    for k, moves in enumerate(rounds):
        yields.append(current_line(rounds))
        for src, dst, sbuf, chunk, dbuf, to, n, op in moves if isinstance(moves, list) else [moves]:
            if not (isinstance(src, Rank) and src.offset == 0):
                raise ArgumentError(f"{title}: round {k}: every rank must send for itself, not for {src}")
            rows.append((k, 0, _offset(title, dst), sbuf, _offset(title, chunk), dbuf, _offset(title, to), n, op))
    table = np.array(rows, np.int64).reshape(-1, 9)
    return Schedule(ranks, ranks, table, collective, title, 0, result, tuple(yields), symmetric=True)


def _offset(title: str, symbol: Any) -> int:
    if not isinstance(symbol, Rank):
        raise ArgumentError(
            f"{title}: {symbol!r} is the number of a rank or chunk; a symmetric algorithm has only r + k"
        )
    return symbol.offset
